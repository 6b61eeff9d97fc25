from __future__ import annotations

import pytest

from celery_redis_plus.topology.packing import CallTemplate, pack_arguments, pack_call, pack_command, pack_in_python

COMMANDS = [
    (b"PING",),
    ("SET", b"k\r\n\x00\xff", "ż🥕"),
    ("ZADD", "k", 2550000000000000, 1.5, -7, 0),
    ("", b"", "x" * 70_000),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_hiredis_and_python_pack_alike(command):
    pytest.importorskip("hiredis")
    assert pack_command(command) == pack_in_python(command)


def test_the_form_is_that_of_the_protocol():
    assert pack_in_python(("SET", b"key", 12)) == b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$2\r\n12\r\n"


def test_a_template_is_filled_to_what_packing_the_whole_gives():
    keys, arguments, rest = (b"100%d", b"{\r\n}"), (b"%b\x00\r\n", b"", b"12", b"4"), (7, "ż", b"\xff")
    template = CallTemplate(b"sha", keys, len(arguments) + len(rest))
    for _ in range(2):
        assert template.fill(*arguments, pack_arguments(rest)) == pack_call(b"sha", keys, (*arguments, *rest))
