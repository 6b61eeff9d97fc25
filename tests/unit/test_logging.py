"""One tree of loggers; and what a line says of a queue, a message or a task stands in the record's attributes, too."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import ROOT
from tests.support.source import PACKAGE, modules

pytestmark = pytest.mark.same_everywhere

#: The words before a placeholder, and the attribute that has its value.
NAMED = {"queue": "queue", "message": "tag", "exchange": "exchange", "task": "task_name"}
PLACEHOLDER = re.compile(r"(?<!maintenance )\b(\w+) %[rs]")


def log_calls():
    """Yield file, line and node of each call of a logger above DEBUG, with its text."""
    for path, module in modules().items():
        for node in ast.walk(module):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level)) if level not in {"debug", "log"}:
                    texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                    if texts:
                        yield f"{path}:{node.lineno}", node, texts[0]


def attributes(node):
    found = [keyword.value for keyword in node.keywords if keyword.arg == "extra"]
    return {key.value for one in found if isinstance(one, ast.Dict) for key in one.keys if isinstance(key, ast.Constant)}, found


def test_a_line_about_a_queue_a_message_or_a_task_has_it_as_an_attribute():
    assert [where for where, node, text in log_calls() if not tells_in_attributes(node, text)] == []


def tells_in_attributes(node, text):
    wanted = {NAMED[word] for word in PLACEHOLDER.findall(text) if word in NAMED}
    given, found = attributes(node)
    if "task_id" in given:
        # Only its id is known.
        wanted.discard("task_name")
    # A call of a function, or a name, has its own test.
    return wanted <= given or bool(found and not isinstance(found[0], ast.Dict))


def test_all_loggers_are_of_one_tree():
    others = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "getLogger(" in line
        and "getLogger(__name__" not in line
        and "getLogger()" not in line
        # Spark's own, which is kept silent.
        and "PySparkLogger." not in line
    ]
    assert others == []
