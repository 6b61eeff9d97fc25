from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.last_error import TEXT_BYTES, Failure, failure_of, read_failure


@pytest.mark.parametrize("failure", [
    Failure("ValueError: a\tb\nc\\"), Failure("KeyError", "line 1\nline 2"), Failure("E: \N{SNOWMAN}", "\tx"),
    Failure("E", release="2026.11\t3"), Failure("E", "line 1", "v1"),
])  # fmt: skip
def test_an_exception_comes_back_as_it_was_packed(failure):
    assert read_failure(failure.packed()) == failure
    assert "\n" not in failure.packed()


def test_no_exception_is_none():
    assert read_failure("") is None


def test_the_message_keeps_its_beginning_within_its_bytes():
    text = failure_of("ValueError", "\N{SNOWMAN}" * 1000).text
    assert text.startswith("ValueError: \N{SNOWMAN}")
    assert text.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert len(text.encode()) <= TEXT_BYTES
    assert failure_of("KeyError", "").text == "KeyError"


def test_a_traceback_keeps_its_last_whole_lines_and_nothing_by_default():
    traceback = "first line\nsecond line\nE: text\n"
    assert failure_of("E", "text", traceback).traceback == ""
    assert failure_of("E", "text", traceback, traceback_bytes=15).traceback == "E: text"
    assert failure_of("E", "text", traceback, traceback_bytes=1000).traceback == traceback.rstrip()
