from __future__ import annotations

import hashlib

import pytest

from celery_redis_plus import scripts
from celery_redis_plus.maintenance.heartbeat import BEATS_A_SECOND, LONGEST_BEAT_S
from celery_redis_plus.scripts import Script, ScriptError, compose, script


@pytest.fixture
def files(monkeypatch):
    """Lua files by path, instead of the installed ones."""
    texts: dict[str, str] = {}

    def read(path):
        try:
            return texts[path]
        except KeyError:
            raise ScriptError(f"Lua file {path!r} is not installed beside celery_redis_plus") from None

    monkeypatch.setattr(scripts, "_read", read)
    script.cache_clear()
    yield texts
    script.cache_clear()


def test_includes_are_put_in_once_and_in_place(files):
    files["include/a.lua"] = "local a = 1\n-- @include b"
    files["include/b.lua"] = "local b = 2"
    assert compose("-- @include b\n-- @include a\nreturn a + b") == "local b = 2\nlocal a = 1\n\nreturn a + b"


def test_an_include_that_includes_itself_ends(files):
    files["include/a.lua"] = "-- @include a\nlocal a"
    assert compose("-- @include a") == "\nlocal a"


@pytest.mark.parametrize("line", ["  -- @include a", "-- @include a b", "--@include a", "print('-- @include a')"])
def test_only_a_whole_line_is_an_include(files, line):
    assert compose(line) == line


def test_a_missing_include_or_script_is_named(files):
    files["x.lua"] = "-- @include nothing"
    with pytest.raises(ScriptError, match=r"'include/nothing\.lua'"):
        script("x")
    with pytest.raises(ScriptError, match=r"'y\.lua'"):
        script("y")


def test_the_name_on_the_server_is_the_sha1_of_the_text():
    source = "return 1 -- ż"
    assert Script.of("x", source).sha == hashlib.sha1(source.encode()).hexdigest().encode()


def test_a_script_is_composed_once_and_prints_without_its_text():
    assert script("claim") is script("claim")
    assert "redis.call" not in repr(script("claim"))


def test_a_missing_installation_is_an_error_of_ours():
    with pytest.raises(ScriptError, match="not installed"):
        script("no such script")


def test_a_script_gives_silent_processes_the_time_of_their_heartbeats():
    """Both spread the heartbeats of many processes."""
    spread = f"math.min(math.max(processes * {1000 // BEATS_A_SECOND}, 2000), {LONGEST_BEAT_S * 1000:.0f})"
    assert spread in script("check_consumers").source
