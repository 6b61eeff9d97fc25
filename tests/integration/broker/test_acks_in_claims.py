"""A claim takes the batched acks of its queues along: one script call, one round trip."""

from __future__ import annotations

import dataclasses

import pytest
from redis.exceptions import RedisError

from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.broker.queues.queues import Sizes


@pytest.fixture
def carrying(broker):
    """The broker, whose claims know of its acks."""
    claims = ClaimCommands(
        broker.commands, broker.keys, holder="holder", visibility_timeout_s=30, acknowledger=broker.acknowledger
    )
    return dataclasses.replace(broker, claim_commands=claims)


def hold(broker, *queues, credit=100):
    """Claim, and enter what comes as the delivery loop does."""
    found = broker.claim(*queues, credit=credit)
    broker.unacked_messages.add(found, "holder", 0.0)
    return [broker.unacked_messages.find(message.tag) for message in found]


def ack(broker, *messages):
    for message in messages:
        assert broker.unacked_messages.begin_settling(message.tag, Settlement.ACK) is message
        broker.acknowledger.batch_ack(message)


def evalshas(broker):
    return broker.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_one_call_acks_and_claims(carrying):
    carrying.declare("q")
    carrying.publish("q", b"1", b"2", b"3")
    (first,) = hold(carrying, "q", credit=1)
    ack(carrying, first)
    before = evalshas(carrying)
    (second,) = hold(carrying, "q", credit=1)
    assert evalshas(carrying) == before + 1
    assert carrying.unacked_messages.find(first.tag) is None
    assert carrying.client.zrange("messages_index:{q}", 0, -1) == [second.tag.encode()]
    assert carrying.client.exists(f"message:{{q}}{first.tag}") == 0
    carrying.check()


def test_acks_of_several_queues_go_with_one_claim(carrying):
    for queue in ("a", "b", "c"):
        carrying.declare(queue)
        carrying.publish(queue, b"1", b"2", b"3")
    held = hold(carrying, "a", "b", "c", credit=6)
    ack(carrying, *held)
    before = evalshas(carrying)
    # Those of the queue that is not claimed from take a call of their own.
    hold(carrying, "c", "b", credit=1)
    carrying.commands.read_until()
    assert evalshas(carrying) == before + 2
    assert len(carrying.unacked_messages) == 1
    carrying.check()


@pytest.mark.parametrize("place", ["ready", "dead", "gone"])
def test_a_message_that_stands_elsewhere_by_now_is_acked_by_the_maintenance_task(carrying, place):
    carrying.declare("q")
    carrying.publish("q", b"1", b"2", b"3")
    held = hold(carrying, "q", credit=2)
    moved = UnackedMessage(held[0].tag, "q", held[0].claim, "holder")
    if place == "gone":
        carrying.ack("q", moved.tag)
    else:
        carrying.acknowledger.settle([moved], Settlement.REQUEUE if place == "ready" else Settlement.REJECT)
    ack(carrying, *held)
    hold(carrying, "q", credit=0)
    deferred = carrying.unacked_messages.take_deferred()
    assert set(deferred) == set(held)
    assert {message.settlement for message in deferred} == {Settlement.ACK}
    carrying.acknowledger.settle(deferred, Settlement.ACK)
    assert len(carrying.unacked_messages) == 0
    assert carrying.queues.sizes("q") == Sizes(1, 0, 0)
    assert carrying.client.zcard("dead:{q}") == 0
    carrying.check()


def test_acks_of_a_claim_that_is_lost_are_deferred(carrying):
    carrying.declare("q")
    carrying.publish("q", b"1", b"2")
    (first,) = hold(carrying, "q", credit=1)
    ack(carrying, first)
    carrying.client.client_kill_filter(_id=carrying.commands.command("CLIENT", "ID"))
    with pytest.raises(RedisError):
        carrying.claim("q", credit=1)
    assert carrying.unacked_messages.take_deferred() == [first]
    assert first.settlement is Settlement.ACK
    carrying.acknowledger.settle([first], Settlement.ACK)
    assert len(carrying.unacked_messages) == 0
    carrying.check()


@pytest.mark.parametrize("damaged", ["messages_index:{bad}", "queue:{bad}"])
def test_acks_fail_for_a_damaged_queue_alone_and_the_claim_goes_on(carrying, damaged):
    carrying.declare("bad", "q")
    carrying.publish("bad", b"1", b"2")
    carrying.publish("q", b"3", b"4")
    ack(carrying, *hold(carrying, "bad", credit=1), *hold(carrying, "q", credit=1))
    carrying.client.rename(damaged, "elsewhere")
    carrying.client.set(damaged, "foreign")
    assert carrying.bodies("bad", "q") == [b"4"]
    deferred = carrying.unacked_messages.take_deferred()
    assert [message.queue for message in deferred] == ["bad"] * damaged.startswith("messages_index")
    carrying.client.rename("elsewhere", damaged)
    carrying.acknowledger.settle(deferred, Settlement.ACK)
    assert len(carrying.unacked_messages) == 0
    assert carrying.bodies("bad") == [b"2"]
    carrying.check()


def test_a_sent_claim_settles_its_acks_when_the_reply_is_read(carrying):
    carrying.declare("q")
    carrying.publish("q", b"1", b"2")
    (first,) = hold(carrying, "q", credit=1)
    ack(carrying, first)
    replies = []
    carrying.claim_commands.post(["q"], 1, share=False, done=lambda *answer: replies.append(answer))
    assert carrying.unacked_messages.find(first.tag) is first
    carrying.commands.read_until()
    assert carrying.unacked_messages.find(first.tag) is None
    assert replies[0][1] is None
    carrying.check()


def test_a_sent_claim_that_is_lost_defers_its_acks(carrying):
    carrying.declare("q")
    carrying.publish("q", b"1", b"2")
    (first,) = hold(carrying, "q", credit=1)
    ack(carrying, first)
    errors = []
    carrying.client.client_pause(30_000, all=False)
    carrying.claim_commands.post(["q"], 1, share=False, done=lambda _, error: errors.append(error))
    carrying.commands.abort(ConnectionError("cut"))
    carrying.client.client_unpause()
    assert errors[0] is not None
    assert carrying.unacked_messages.take_deferred() == [first]


@pytest.mark.parametrize("kind", ["~", "-", "="])
def test_a_claim_carries_no_acks_of_messages_with_limits_or_events(carrying, kind):
    carrying.declare("q")
    carrying.publish("q", b"1")
    (message,) = carrying.claim("q")
    tag = message.tag[:19] + kind + message.tag[20:]
    carrying.acknowledger.batch_ack(UnackedMessage(tag, "q", 1, "holder"))
    assert carrying.acknowledger.take_for_claim(["q"]) == []
    assert not carrying.acknowledger.has_batched
    assert carrying.commands.has_pending


def test_a_claim_carries_no_acks_that_wake_other_consumers(carrying):
    carrying.declare("q")
    carrying.publish("q", b"1")
    (message,) = hold(carrying, "q")
    carrying.unacked_messages.limited.add("q")
    ack(carrying, message)
    assert carrying.acknowledger.take_for_claim(["q"]) == []
    assert carrying.commands.has_pending
