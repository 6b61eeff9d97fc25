"""The looks for consumers that are due before the next heartbeat of a process go with this one, in one write."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.registry import Consumer, Consumers
from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.maintenance import consumer_lists
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.consumer_lists import ConsumerLists
from tests.support.inbox import Inbox, declare
from tests.support.waiting import wait_until

TIMEOUT_S = 60
INTERVAL_S = TIMEOUT_S / 3


@pytest.fixture
def advance(monkeypatch):
    """Step the clock of this process: `advance(20)`."""
    steps, now_s = [], clock.now_s
    monkeypatch.setattr(clock, "now_s", lambda: now_s() + sum(steps))
    return steps.append


@pytest.fixture
def commands(channel):
    return channel.session.commands


@pytest.fixture
def lists(channel, commands):
    """Those of a process that consumes one queue, looked for once."""
    declare(channel, "q")
    consumers, consumed = Consumers(commands, channel.session.keys), ConsumedQueues()
    consumer = Consumer("s.1", "q", "t")
    consumers.join(consumer)
    consumed.add("q", consumer.id, None, consumer)
    made = ConsumerLists(consumers, consumed, UnackedMessages(), DeclaredTopology(), timeout_s=TIMEOUT_S)
    made.run()
    assert consumed.seen["q"].consumers == 1
    return made


def test_an_idle_consumer_looks_with_its_heartbeats_alone(connect, monkeypatch):
    # The interval is hardly longer than that of the heartbeats here.
    monkeypatch.setattr(consumer_lists, "TOGETHER", 1.0)
    alone, together = [], []
    check, check_nowait = Consumers.check_listed, Consumers.check_listed_nowait
    monkeypatch.setattr(Consumers, "check_listed", lambda *call: alone.append(call) or check(*call))
    monkeypatch.setattr(Consumers, "check_listed_nowait", lambda *call: together.append(check_nowait(*call)) or together[-1])
    Inbox(connect(consumer_heartbeat_timeout=4).channel(), "q")
    wait_until(lambda: alone)
    alone.clear()
    wait_until(lambda: [look.reply is not None for look in together] >= [True] * 3, 10)
    assert not alone


def test_consumers_that_are_due_before_the_next_heartbeat_are_looked_for_with_this_one(lists, commands, advance, redis_client):
    lists.go_with_heartbeat(clock.now_s() + INTERVAL_S)
    assert not commands.has_pending, "it is too soon"
    advance(0.9 * INTERVAL_S)
    lists.go_with_heartbeat(clock.now_s() + INTERVAL_S / 20)
    assert not commands.has_pending, "the next heartbeat comes in time"
    redis_client.hdel("consumer:{q}:s.1", "heard")
    lists.go_with_heartbeat(clock.now_s() + INTERVAL_S)
    assert commands.has_pending
    assert not redis_client.hexists("consumer:{q}:s.1", "heard"), "it waits for the next write"
    commands.command("PING")
    assert redis_client.hexists("consumer:{q}:s.1", "heard")
    assert lists.next_run_at == 0.0
    lists.run()
    assert lists.next_run_at > clock.now_s() + 0.9 * INTERVAL_S


def test_a_consumer_that_is_listed_no_more_joins_again_where_the_look_went_with_a_heartbeat(
    lists, commands, advance, redis_client
):
    redis_client.delete("consumers:{q}")
    advance(0.9 * INTERVAL_S)
    lists.go_with_heartbeat(clock.now_s() + INTERVAL_S)
    commands.command("PING")
    lists.run()
    advance(lists.next_run_at - clock.now_s())
    lists.run()
    assert redis_client.zcard("consumers:{q}") == 1


def test_a_look_without_an_answer_is_done_again(lists, commands, advance, redis_client):
    advance(0.9 * INTERVAL_S)
    lists.go_with_heartbeat(clock.now_s() + INTERVAL_S)
    commands.abort()
    redis_client.hdel("consumer:{q}:s.1", "heard")
    assert lists.next_run_at == 0.0
    lists.run()
    assert redis_client.hexists("consumer:{q}:s.1", "heard")
