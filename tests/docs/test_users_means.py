"""What users have is enough to test kombu's side and Celery's: their tests go by kombu, Celery, commands and redis-py.

So a change inside the package changes none of them. Tests of the inside stand in the folder of their room.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent

from tests.docs.blocks import ROOT
from tests.docs.test_public_names import is_public

FOLDERS = ("tests/integration/transport", "tests/integration/celery")
#: How a test gets from a kombu connection or channel to what is behind it.
INSIDE = {"consumer_session", "delivery_loop", "queue_consumers", "service", "session"}
PACKAGE = "celery_redis_plus"


def offences(tree: ast.AST) -> Iterator[str]:
    """Yield what the tests of those folders may not use, in the programs too that they run."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == PACKAGE:
                yield from (f"{module}.{alias.name}" for alias in node.names if not is_public(module, alias.name))
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}."))
            case ast.Attribute(attr=name) if name in INSIDE:
                yield f".{name}"
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Constant(value=str(text)) if "import " in text:
                yield from offences(program(text))


def program(text: str) -> ast.AST:
    """Return the program that a text is, or an empty one."""
    try:
        return ast.parse(dedent(text))
    except SyntaxError:
        return ast.Module([], [])


def test_they_use_what_users_have():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(file.relative_to(ROOT)): sorted({*offences(ast.parse(file.read_text(encoding="utf-8")))}) for file in files}
    assert len(files) > 80
    assert {file: names for file, names in found.items() if names} == {}


def test_what_reaches_inside_is_found():
    inside = "import kombu\nkombu.Connection().default_channel.session.fail()\n"
    for line, name in {
        "from celery_redis_plus.keys import Keys": "celery_redis_plus.keys.Keys",
        "from celery_redis_plus import clock": "celery_redis_plus.clock",
        "import celery_redis_plus.clock": "celery_redis_plus.clock",
        "channel.session.keys": ".session",
        'monkeypatch.setattr("celery_redis_plus.clock.now_s", 5)': "celery_redis_plus.clock.now_s",
        f"run({inside!r})": ".session",
    }.items():
        assert [*offences(ast.parse(line))] == [name]
    assert [*offences(ast.parse("from celery_redis_plus import browse\nfrom celery_redis_plus.errors import QueueFull"))] == []
