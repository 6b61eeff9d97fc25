"""Consumers of a higher priority get every message while they have credit."""

from __future__ import annotations

import threading
import time

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


def queue(priority, name="q"):
    return kombu.Queue(name, durable=True, consumer_arguments={"x-priority": priority})


def together(*inboxes, quiet_s=0.2):
    """Let inboxes take deliveries in turn until all were quiet for a while."""
    deadline = time.monotonic() + quiet_s
    while time.monotonic() < deadline:
        if sum(inbox.pump(0.01) for inbox in inboxes):
            deadline = time.monotonic() + quiet_s


def test_the_higher_priority_gets_every_message_while_it_has_credit(connect):
    low, high = (Inbox(connect().channel(), queue(priority), prefetch=10) for priority in (0, 10))
    publisher = connect().channel()
    for number in range(50):
        publish(publisher, "q", number)
        together(low, high, quiet_s=0.02)
    assert high.bodies == list(range(50))
    assert low.bodies == []


def test_lower_ones_take_over_when_the_higher_is_full_and_step_back_when_it_is_not(connect):
    high = Inbox(connect().channel(), queue(10), prefetch=2, ack=False)
    middle = Inbox(connect().channel(), queue(5), prefetch=1, ack=False)
    low = Inbox(connect().channel(), "q", prefetch=10, ack=False)
    publisher = connect().channel()
    for number in range(6):
        publish(publisher, "q", number)
        together(low, middle, high, quiet_s=0.05)
    assert (high.bodies, middle.bodies, low.bodies) == ([0, 1], [2], [3, 4, 5])
    high.messages[0].ack()
    together(low, middle, high, quiet_s=0.05)
    publish(publisher, "q", 6)
    together(low, middle, high, quiet_s=0.05)
    assert (high.bodies, middle.bodies, low.bodies) == ([0, 1, 6], [2], [3, 4, 5])


def test_the_lower_one_receives_within_milliseconds_when_the_higher_is_full(connect):
    high = Inbox(connect().channel(), queue(10), prefetch=1, ack=False)
    publisher = connect().channel()
    publish(publisher, "q", "fills it")
    high.drain(1)
    low, stop = Inbox(connect(polling_interval=600).channel(), "q"), threading.Event()
    thread = threading.Thread(target=lambda: [low.pump(0.2) for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        published = []
        for number in range(20):
            published.append(time.time())
            publish(publisher, "q", number)
            wait_until(lambda number=number: len(low.messages) > number, interval_s=0.001)
    finally:
        stop.set()
        thread.join()
    late_ms = sorted((got - sent) * 1000 for got, sent in zip(low.times, published, strict=True))
    # The promise is 50 ms; a busy machine may hold up a few.
    assert late_ms[len(late_ms) // 2] < 50, late_ms


def test_a_consumer_whose_credit_went_to_another_queue_passes_the_queue_on(connect):
    channel = connect().channel()
    declare(channel, "q", "other")
    high = Inbox(channel, queue(10), queue(0, "other"), prefetch=1, ack=False)
    low = Inbox(connect().channel(), "q", ack=False)
    publisher = connect().channel()
    together(high, low, quiet_s=0.1)
    publish(publisher, "other", "fills it")
    together(high, low, quiet_s=0.1)
    publish(publisher, "q", 1)
    together(high, low, quiet_s=0.1)
    assert (high.bodies, low.bodies) == (["fills it"], [1])
    high.messages[0].ack()
    together(high, low, quiet_s=0.1)
    publish(publisher, "q", 2)
    together(high, low, quiet_s=0.1)
    assert (high.bodies, low.bodies) == (["fills it", 2], [1])


def test_a_cancelled_consumer_passes_the_queue_on_and_without_priorities_the_queue_is_plain_again(connect, redis_client):
    low, high = (Inbox(connect().channel(), queue(priority)) for priority in (-3, 3))
    publisher = connect().channel()
    assert redis_client.hget("meta:{q}", "restricted") == b"now"
    high.cancel()
    publish(publisher, "q", 1)
    assert low.drain(1, timeout_s=3) == [1]
    low.cancel()
    assert redis_client.hmget("meta:{q}", "restricted", "prioritised", "wakeup") == [None] * 3
    plain = Inbox(connect().channel(), "q")
    publish(publisher, "q", 2)
    assert plain.drain(1, timeout_s=3) == [2]


def test_what_a_dead_consumer_had_passes_on_within_the_heartbeat_timeout(connect, broker_url):
    options = {"consumer_heartbeat_timeout": 1, "polling_interval": 600}
    frozen = connect(**options)
    high = Inbox(frozen.channel(), queue(10))
    other = connect(**options, visibility_timeout=4)
    low = Inbox(other.channel(), "q")
    together(high, low, quiet_s=0.1)
    # It gives no sign of life any more, and its connection stands.
    frozen.transport.session.service.stop()
    publisher = connect(**options, visibility_timeout=4).channel()
    start = machine_time()
    publish(publisher, "q", 1)
    assert low.drain(1, timeout_s=15) == [1]
    assert machine_time() - start < 10
    # When it is back, it gets all again.
    frozen.transport.session.service.start()
    with BrokerAdmin(broker_url) as operator:
        wait_until(lambda: len(operator.consumers("q")) == 2)
    together(high, low, quiet_s=0.3)
    publish(publisher, "q", 2)
    together(high, low)
    assert (high.bodies, low.bodies) == ([2], [1])


def test_a_consumer_that_has_credit_and_does_not_take_is_passed_over(connect):
    """A solo worker inside a long task."""
    high = Inbox(connect().channel(), queue(10), prefetch=10)
    low = Inbox(connect(polling_interval=0.5).channel(), "q")
    together(high, low, quiet_s=0.1)
    publish(low.channel, "q", 1, 2)
    assert low.drain(2, timeout_s=8) == [1, 2]


def test_equal_priorities_share(connect):
    inboxes = [Inbox(connect().channel(), queue(7), prefetch=1) for _ in range(2)]
    publisher = connect().channel()
    for number in range(20):
        publish(publisher, "q", number)
        together(*inboxes, quiet_s=0.01)
    together(*inboxes)
    assert [len(inbox.messages) for inbox in inboxes] == [10, 10]


def test_the_option_gives_all_consumers_of_a_connection_a_priority(connect, broker_url):
    Inbox(connect(consumer_priority=4).channel(), "q", queue(9, "r"))
    with BrokerAdmin(broker_url) as operator:
        assert [operator.consumers(name)[0].priority for name in ("q", "r")] == [4, 9]


@pytest.mark.parametrize("priority", [True, 1.5, "high", 10**7])
def test_a_priority_that_is_none_is_refused(channel, priority):
    declare(channel, "q")
    with pytest.raises((InvalidArgument, ChannelError), match="x-priority"):
        Inbox(channel, queue(priority))
