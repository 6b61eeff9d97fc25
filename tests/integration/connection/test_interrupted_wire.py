"""Signal handlers run in the midst of the main thread's calls, and use the same wire: Celery's cold shutdown does."""

from __future__ import annotations

import signal
from contextlib import contextmanager

import pytest

from celery_redis_plus.connection import persistent_connection

pytestmark = pytest.mark.server

#: A reply that takes half a second; the handler runs after 0.1 s.
SLOW, LATER_S = ("BLPOP", "nothing", "0.5"), 0.1


@contextmanager
def interrupting(handler):
    """Run `handler` in the main thread, in the midst of what the block waits for; return a list of its one result."""
    results = []
    before = signal.signal(signal.SIGALRM, lambda *_: results.append(handler()))
    signal.setitimer(signal.ITIMER_REAL, LATER_S)
    try:
        yield results
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def numbered(commands, number):
    return commands.command("ECHO", number)


def test_a_call_within_a_call_gets_its_own_reply_and_leaves_the_other_one_its_own(commands):
    with interrupting(lambda: numbered(commands, "inner")) as results:
        assert commands.command(*SLOW) is None
    assert results == [b"inner"]
    assert numbered(commands, "after") == b"after"


def test_a_pipeline_within_a_pipeline_gets_its_own_replies(commands):
    with interrupting(lambda: commands.pipeline([("ECHO", "a"), ("ECHO", "b")])) as results:
        assert commands.pipeline([("ECHO", "c"), SLOW, ("ECHO", "d")]) == [b"c", None, b"d"]
    assert results == [[b"a", b"b"]]


def test_a_call_while_an_owed_reply_is_awaited_gets_its_own(commands):
    owed = []
    commands.command_nowait(*SLOW, done=lambda *outcome: owed.append(outcome))
    with interrupting(lambda: numbered(commands, "inner")) as results:
        commands.read_until()
    assert results == [b"inner"]
    assert owed == [(None, None)]
    assert numbered(commands, "after") == b"after"


def test_what_is_posted_within_a_call_is_answered_before_the_handler_ends(commands, redis_client):
    asked = []

    def post():
        commands.command_nowait("SET", "posted", "1", done=lambda *outcome: asked.append(outcome), buffered=True)
        commands.flush()
        commands.read_ready()
        commands.read_until()
        return list(asked)

    with interrupting(post) as results:
        assert commands.command(*SLOW) is None
    assert results == [[(b"OK", None)]]
    assert redis_client.get("posted") == b"1"


def interrupt():
    raise KeyboardInterrupt


def test_an_interrupt_while_a_connection_is_set_up_leaves_none(commands, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(persistent_connection, "replies_of", lambda _: interrupt())
        with pytest.raises(KeyboardInterrupt):
            numbered(commands, "interrupted")
    assert numbered(commands, "after") == b"after"


def test_an_interrupt_while_an_idle_connection_is_checked_takes_no_reply_of_the_next_call(open_commands, proxy, monkeypatch):
    commands = open_commands(port=proxy.port, health_check_interval=0.001)
    assert numbered(commands, "before") == b"before"
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", 0)
    proxy.delay(3 * LATER_S)
    with pytest.raises(KeyboardInterrupt), interrupting(interrupt):
        numbered(commands, "interrupted")
    proxy.heal()
    assert numbered(commands, "after") == b"after"


def test_a_publish_within_a_call_has_a_number_of_its_own(commands):
    commands.connect()
    with interrupting(commands.next_number) as results:
        assert commands.command(*SLOW) is None
    ((producer, number),) = results
    assert number == 1
    assert producer != commands.producer
    assert commands.next_number() == (commands.producer, 1)
