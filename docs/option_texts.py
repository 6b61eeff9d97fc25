"""What the page of options prints of each: its declaration in `celery_redis_plus/options.py`, and the text below that."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise

from celery_redis_plus.options import Options


def option_texts() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield (name, type, default, unit, allowed values, text) of every option."""
    texts = _texts()
    for one in fields(Options):
        meta = one.metadata
        yield one.name, meta["type"], repr(one.default), meta["unit"], meta["allowed"], texts[one.name]


def _texts() -> dict[str, str]:
    """Return the text that stands below each option."""
    (declaration,) = ast.parse(inspect.getsource(Options)).body
    texts = {}
    for pair in pairwise(ast.iter_child_nodes(declaration)):
        match pair:
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc)))):
                texts[name] = " ".join(doc.split())
    return texts
