from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.leases import LEASES_A_CALL, Leases
from celery_redis_plus.broker.consumers.settlement import Settlement
from tests.support.process_clock import ProcessClock

TIMEOUT_S = 30.0


@pytest.fixture
def leases(broker):
    return Leases(broker.commands, broker.keys, broker.unacked_messages, visibility_timeout_s=TIMEOUT_S)


@pytest.fixture
def held(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    return broker.unacked_messages.find(message.tag)


def stand_still(held):
    """As if more than the visibility timeout had passed since the server was asked last."""
    held.confirmed_at -= TIMEOUT_S + 1


def calls(broker):
    return broker.client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def test_what_was_claimed_lately_is_held_and_nobody_is_asked(broker, leases, held):
    before = calls(broker)
    assert leases.holds(held.tag)
    assert calls(broker) == before


def test_many_leases_are_extended_by_calls_of_a_few_each_of_which_once(broker, leases):
    broker.declare("q")
    count = 2 * LEASES_A_CALL + 50
    broker.publish("q", *(b"%d" % number for number in range(count)))
    while messages := broker.claim("q", credit=500):
        broker.unacked_messages.add(messages, "session", clock.now_s())
    held = [broker.unacked_messages.find(tag.decode()) for tag in broker.client.zrange("messages_index:{q}", 0, -1)]
    broker.client.config_resetstat()
    leases.extend(held)
    assert calls(broker) == 3
    # One look at each message.
    assert broker.client.info("commandstats")["cmdstat_hmget"]["calls"] < count + LEASES_A_CALL


def test_after_a_standstill_the_server_is_asked_once_and_the_claim_extended(broker, leases, held):
    stand_still(held)
    broker.client.zadd("messages_index:{q}", {held.tag: 1})
    before = calls(broker)
    assert leases.holds(held.tag)
    assert leases.holds(held.tag)
    assert calls(broker) == before + 1
    assert broker.client.zscore("messages_index:{q}", held.tag) > 1


def test_a_standstill_before_the_answer_is_read_counts(broker, leases, held, monkeypatch):
    stepped, call = ProcessClock(clock.now_s()), broker.commands.call

    def stand_still_before_the_reply(*arguments):
        reply = call(*arguments)
        stepped.advance(TIMEOUT_S + 1)
        return reply

    monkeypatch.setattr(clock, "now_s", stepped)
    monkeypatch.setattr(broker.commands, "call", stand_still_before_the_reply)
    leases.extend([held])
    assert not held.is_certain(TIMEOUT_S)


@pytest.mark.parametrize("how", ["claimed by another", "ready again", "gone"])
def test_after_a_standstill_what_others_have_is_lost(broker, leases, held, how):
    if how == "gone":
        broker.ack("q", held.tag)
    else:
        broker.acknowledger.settle([type(held)(held.tag, "q", held.claim, "session")], Settlement.RELEASE_SEEN)
        broker.unacked_messages._unacked[held.tag] = held  # noqa: SLF001 - this process does not know that it went back
        if how == "claimed by another":
            assert len(broker.claim("q")) == 1
    assert leases.holds(held.tag), "within its time it is believed"
    stand_still(held)
    assert not leases.holds(held.tag)
    assert not leases.holds(held.tag)


def test_what_does_not_stand_in_the_register_is_left_alone(leases):
    assert leases.holds("of an early ack, or of a broadcast")
