"""A walk by pages passes no entry over and none twice, whatever its bytes are and whatever locale the server has."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from celery_redis_plus import scripts
from tests.support.servers import server_program

#: In the order of en_US.UTF-8 these do not stand as their bytes do.
MEMBERS = [*b"a B b A _ aa a.b A.b ab Z z 0 - ~".split(), b"\xc3\xa9", b"\xff", b"a\0b", b"a\0"]
WALK = scripts.compose("""\
-- @include place
local page, reached = page_behind(KEYS[1], ARGV[1], tonumber(ARGV[2]))
return { reached, unpack(page) }
""")


def walked(client, size):
    found, place = [], b""
    while True:
        place, *page = client.eval(WALK, 1, "walked", place, size)
        found += page[::2]
        if not place or len(found) > 2 * len(MEMBERS):
            return found


@pytest.fixture
def server_of_another_locale(tmp_path, monkeypatch):
    """A server that orders text as English does: Redis takes LC_COLLATE from its environment."""
    from celery_redis_plus.testing.server import EmbeddedServer

    if shutil.which("localedef") is None:
        pytest.skip("localedef is not installed")
    (tmp_path / "locales").mkdir()
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "UTF-8", str(tmp_path / "locales" / "en_US.utf8")], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("the sources of locales are not installed")
    monkeypatch.setenv("LOCPATH", os.fspath(tmp_path / "locales"))
    monkeypatch.setenv("LC_ALL", "en_US.utf8")
    # A program linked with another C library knows no locales.
    with EmbeddedServer(binary=shutil.which("redis-server") or server_program()) as server:
        yield server


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pages_have_each_entry_once(redis_client, size):
    redis_client.zadd("walked", dict.fromkeys(MEMBERS, 7))
    assert walked(redis_client, size) == redis_client.zrange("walked", 0, -1)


def test_pages_have_each_entry_once_in_another_locale(server_of_another_locale):
    with server_of_another_locale.client() as client:
        client.zadd("walked", dict.fromkeys(MEMBERS, 7))
        for size in (1, 2, 5):
            assert walked(client, size) == client.zrange("walked", 0, -1)
