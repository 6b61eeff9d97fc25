"""A server forgets its scripts: after SCRIPT FLUSH, a restart, a failover."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement


def test_calls_load_their_scripts_again(broker):
    broker.declare("q")
    for body in (b"1", b"2"):
        broker.client.script_flush()
        broker.publish("q", body)
        broker.client.script_flush()
        (message,) = broker.claim("q")
        assert message.body == body
        broker.client.script_flush()
        broker.settle(Settlement.ACK, message)
    assert broker.client.keys("message:*") == []


@pytest.mark.parametrize("settlement", list(Settlement))
def test_posted_settlements_are_sent_again(broker, settlement):
    broker.declare("q")
    broker.publish("q", b"x", b"y", b"z")
    # Each kind is known to the connection before the server forgets it.
    (first, *rest) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    broker.acknowledger.post(broker.unacked_messages.begin_settling(first.tag, settlement), settlement)
    assert broker.queues.sizes("q").unacked == 2
    broker.client.script_flush()
    for message in rest:
        broker.acknowledger.post(broker.unacked_messages.begin_settling(message.tag, settlement), settlement)
    assert broker.queues.sizes("q").unacked in (0, 2)
    broker.commands.command("PING")
    broker.commands.command("PING")
    assert broker.queues.sizes("q").unacked == 0
    assert len(broker.unacked_messages) == 0


def test_scripts_flushed_between_many_posts_lose_none(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 60)
    claimed = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    for number, message in enumerate(claimed):
        if number % 7 == 0:
            broker.client.script_flush()
        broker.acknowledger.post(broker.unacked_messages.begin_settling(message.tag, Settlement.ACK), Settlement.ACK)
    while broker.commands.has_pending:
        broker.commands.command("PING")
    assert broker.queues.sizes("q").unacked == 0
    assert len(broker.unacked_messages) == 0
    assert not broker.unacked_messages.waiting
