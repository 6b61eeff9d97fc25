"""An exception that has nothing to do with a message leaves the message as it is, although its decoding raises it."""

from __future__ import annotations

import sys

import kombu
import pytest

from celery_redis_plus.transport import kombu_message
from tests.support.inbox import Inbox, declare, publish


class AlarmError(Exception):
    """What a handler of a signal raises: of a class that nobody else knows."""


@pytest.fixture
def interrupt(monkeypatch):
    """Have the next decoding raise."""

    def prepare(error):
        def load(envelope):
            monkeypatch.undo()
            raise error

        monkeypatch.setattr(kombu_message, "load", load)

    return prepare


@pytest.mark.parametrize("error", [AlarmError(), MemoryError()], ids=repr)
def test_a_message_whose_get_was_interrupted_is_got_next(error, channel, interrupt, redis_client):
    declare(channel, "q")
    publish(channel, "q", "first", "second")
    interrupt(error)
    with pytest.raises(type(error)):
        channel.basic_get("q")
    assert [channel.basic_get("q").body for _ in range(2)] == [b"first", b"second"]
    assert not redis_client.exists("dead:{q}")


def test_a_message_whose_delivery_was_interrupted_is_delivered_next(channel, interrupt, redis_client):
    inbox = Inbox(channel, "q")
    publish(channel, "q", "first", "second")
    interrupt(AlarmError())
    with pytest.raises(AlarmError):
        inbox.drain(1)
    assert inbox.drain(2) == ["first", "second"]
    assert not redis_client.exists("dead:{q}")


def test_a_broadcast_whose_delivery_was_interrupted_is_delivered_next(connect, interrupt):
    exchange = kombu.Exchange("e", "fanout")
    inbox = Inbox(connect().channel(), "s", kombu.Queue("s", exchange))
    inbox.rest(0.05)
    kombu.Producer(connect().channel()).publish("news", exchange=exchange)
    interrupt(AlarmError())
    with pytest.raises(AlarmError):
        inbox.drain(1)
    assert inbox.drain(1) == ["news"]


def test_a_caller_that_has_left_little_stack_loses_no_message(channel, redis_client):
    declare(channel, "q")
    publish(channel, "q", "kept", headers={"a": {"b": [1]}})

    def called_at(depth):
        return called_at(depth - 1) if depth else channel.basic_get("q")

    got, refused = None, 0
    # From where nothing is left for the call, to where it has enough.
    for depth in range(sys.getrecursionlimit() - 20, sys.getrecursionlimit() - 400, -1):
        try:
            got = got or called_at(depth)
        except RecursionError:
            refused += 1
        if got is not None:
            break
    assert refused
    assert got is not None, "never delivered"
    assert got.body == b"kept"
    assert not redis_client.exists("dead:{q}")
