"""No modules of this package import each other, also not for types only, nor inside of functions."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cache
from graphlib import TopologicalSorter
from pathlib import PurePath

import pytest

from tests.support import source

pytestmark = pytest.mark.same_everywhere


@cache
def modules() -> dict[str, set[str]]:
    """Return the package's modules by their dotted names, with those of the package that each imports."""
    parsed = {}
    for path, module in source.modules().items():
        parts = (source.PACKAGE.name, *PurePath(path).with_suffix("").parts)
        parsed[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = module
    return {name: imported(module, parsed.keys()) for name, module in parsed.items()}


def imported(module: ast.Module, known: Collection[str]) -> set[str]:
    """Return which of the `known` modules a module imports anywhere."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {module for name in names if (module := module_of(name, known))}


def module_of(name: str, known: Collection[str]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def test_imports_make_no_circle():
    known = modules()
    assert len(known) > 200
    # Raises CycleError, which names the modules of the circle.
    TopologicalSorter({name: others - {name} for name, others in known.items()}).prepare()


def test_rooms_make_no_circle():
    rooms: dict[str, set[str]] = {}
    for name, others in modules().items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update(".".join(other.split(".")[:2]) for other in others)
    TopologicalSorter({room: others - {room} for room, others in rooms.items()}).prepare()
