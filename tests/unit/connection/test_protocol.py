from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from celery_redis_plus.connection.protocol import pack_call, pack_command, pack_in_python
from tests.support.workers import ROOT

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


class Interrupted(float):
    """A number whose text is asked for when a signal's handler raises."""

    def __repr__(self):
        raise KeyboardInterrupt


def test_a_signal_in_the_text_of_a_number_raises():
    # In a process of its own: hiredis would end this one.
    code = (
        "from celery_redis_plus.connection.protocol import pack_command\n"
        "from tests.unit.connection.test_protocol import Interrupted\n"
        "pack_command((b'SET', b'key', Interrupted()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


def test_the_form_is_that_of_the_protocol():
    assert pack_in_python(("SET", b"key", 12)) == b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$2\r\n12\r\n"


def test_a_script_is_called_by_its_hash_with_its_keys_counted():
    packed = pack_command((b"EVALSHA", b"sha", 2, b"100%d", b"{\r\n}", b"", 7, "ż"))
    assert pack_call(b"sha", (b"100%d", b"{\r\n}"), (b"", 7, "ż")) == packed


def test_a_script_is_called_with_a_name_that_is_no_utf_8():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert pack_call(b"sha", (), (name,)) == pack_call(b"sha", (), (b"caf\xe9",))
