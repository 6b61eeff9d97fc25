"""Consumers of several shards: no shard holds up another one, and each queue has somebody who looks after it."""

from __future__ import annotations

import time

import kombu
import pytest

from tests.integration.consumers.test_priorities import queue as with_priority
from tests.integration.consumers.test_priorities import together
from tests.integration.shards.conftest import SHARDS, named
from tests.support.inbox import Inbox, declare, publish

QUEUES = [named(shard) for shard in range(SHARDS)]


@pytest.mark.parametrize("prefetch", [1, 4])
def test_no_shard_starves_another(connect_shards, prefetch):
    channel, publisher = connect_shards().channel(), connect_shards().channel()
    declare(publisher, *QUEUES)
    for queue in QUEUES:
        publish(publisher, queue, *[queue] * 40)
    inbox = Inbox(channel, *QUEUES, prefetch=prefetch)
    first = inbox.drain(120)[: 10 * prefetch]
    assert set(first) == set(QUEUES), first


@pytest.mark.sample(3)
@pytest.mark.parametrize("prefetch", [1, 20, 0])
@pytest.mark.parametrize("what", ["message", "broadcast"])
def test_a_backlog_in_one_shard_does_not_hold_up_another(connect_shards, loop, prefetch, what):
    connection, publisher = connect_shards(), connect_shards().channel()
    news = kombu.Exchange(named(1, "news"), "fanout")
    heard = kombu.Queue(named(0, "heard"), news, auto_delete=True)
    declare(publisher, *QUEUES)
    publish(publisher, QUEUES[0], *range(300))
    inbox = Inbox(connection.channel(), *QUEUES, heard, prefetch=prefetch)
    take = inbox.consumer.on_message

    def work(message):
        time.sleep(0.001)
        take(message)
        if len(inbox.messages) == 50:
            if what == "message":
                publish(publisher, QUEUES[1], "late")
            else:
                kombu.Producer(publisher, news).publish("late")

    inbox.consumer.on_message = work
    loop(connection).run(lambda: len(inbox.messages) == 301, timeout_s=40)
    assert inbox.bodies.index("late") < 250


def test_a_queue_without_a_consumer_is_swept_whatever_shard_it_is_in(connect_shards):
    """The usual retry queue: its messages expire, and go on to a queue of another shard, in which alone somebody consumes."""
    channel = connect_shards().channel()
    inbox = Inbox(connect_shards().channel(), QUEUES[0])
    for number, shard in enumerate((1, 2)):
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUES[0], "x-message-ttl": 100}
        declare(channel, named(shard, "later"), arguments=back)
        publish(channel, named(shard, "later"), number)
    assert sorted(inbox.drain(2)) == [0, 1]


def test_a_consumer_whose_credit_went_to_another_shard_passes_the_queue_on(connect_shards):
    channel, publisher = connect_shards().channel(), connect_shards().channel()
    declare(channel, *QUEUES)
    high = Inbox(channel, with_priority(10, QUEUES[0]), QUEUES[1], prefetch=1, ack=False)
    low = Inbox(connect_shards().channel(), QUEUES[0], ack=False)
    together(high, low, quiet_s=0.1)
    publish(publisher, QUEUES[1], "fills it")
    together(high, low, quiet_s=0.1)
    publish(publisher, QUEUES[0], 1)
    low.drain(1, timeout_s=5)
    assert high.bodies == ["fills it"]
    high.messages[0].ack()
    together(high, low, quiet_s=0.1)
    publish(publisher, QUEUES[0], 2)
    high.drain(2, timeout_s=5)
    assert low.bodies == [1]
