"""What a sample of the docs imports is public: docs/api.md lists it."""

from __future__ import annotations

import ast
import re

from tests.docs.blocks import ROOT, all_blocks

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
#: Module -> the names with an entry of their own.
ENTRIES = {
    section.partition("\n")[0]: set(re.findall(r"^### (\w+)$", section, re.MULTILINE)) for section in API.split("\n## ")[1:]
}
#: Module -> what the list says of it: names, or several words.
ELSEWHERE = dict(re.findall(r"^\* `([\w.]+)`: \[`?([^\]`]+)`?\]", API, re.MULTILINE))


def imports():
    """Yield block, module and name of each import of this package in a sample."""
    for block in all_blocks("python"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "celery_redis_plus":
                yield from ((block, node.module, alias.name) for alias in node.names)


def is_public(module, name):
    told = ELSEWHERE.get(module, "").strip()
    return name in ENTRIES.get(module, ()) or name == told or " " in told or f"{module}.{name}" in {*ENTRIES, *ELSEWHERE}


def test_what_a_sample_imports_is_public():
    assert [f"{block}: {module}.{name}" for block, module, name in imports() if not is_public(module, name)] == []


def test_a_private_name_is_found():
    assert not is_public("celery_redis_plus.keys", "Keys")
    assert not is_public("celery_redis_plus.spark.manifest", "Manifest")


def test_classes_that_nobody_makes_have_no_signature():
    assert "PublisherSession" not in API
