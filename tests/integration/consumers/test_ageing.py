"""Ageing: a waiting message gains one level of priority in so many milliseconds, so that a low one is not starved for ever."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

UNDECLARED = kombu.Queue("q", durable=True, no_declare=True)


def test_a_message_that_has_waited_overtakes_those_of_a_higher_priority(channel):
    declare(channel, "q", arguments={"x-priority-ageing": 100})
    publish(channel, "q", "old and low", priority=0)
    publish(channel, "q", "old and high", priority=5)
    time.sleep(0.35)
    publish(channel, "q", "new, two levels above", priority=2)
    publish(channel, "q", "new, five levels above", priority=5)
    publish(channel, "q", "new and low", priority=0)
    assert Inbox(channel, UNDECLARED, prefetch=1).drain(5) == [
        "old and high",
        "new, five levels above",
        "old and low",
        "new, two levels above",
        "new and low",
    ]


def test_low_priorities_are_served_within_the_time_that_the_levels_take(connect):
    """A flood of the highest priority never ends; without ageing, the low one would wait for ever."""
    channel, publisher = connect().channel(), connect().channel()
    declare(channel, "q", arguments={"x-priority-ageing": 10})
    start = machine_time()
    publish(publisher, "q", "low", priority=0)
    inbox = Inbox(channel, UNDECLARED, prefetch=1, ack=True)
    while "low" not in inbox.bodies:
        publish(publisher, "q", "flood", "flood", priority=20)
        inbox.drain(len(inbox.messages) + 1)
        assert machine_time() - start < 10
    assert time.monotonic() - start >= 0.15


def test_a_requeued_message_keeps_its_place(channel):
    declare(channel, "q", arguments={"x-priority-ageing": 60_000})
    publish(channel, "q", *range(3), priority=3)
    first = channel.basic_get("q")
    publish(channel, "q", "higher", priority=4)
    first.requeue()
    assert Inbox(channel, UNDECLARED, prefetch=1).drain(4) == ["higher", 0, 1, 2]


def test_a_delayed_message_ages_from_its_eta_on(channel):
    declare(channel, "q", arguments={"x-priority-ageing": 50})
    publish(channel, "q", "low, later", priority=0, headers={"x-delay": 300})
    publish(channel, "q", "low", priority=0)
    inbox = Inbox(channel, UNDECLARED, prefetch=1)
    assert inbox.drain(2) == ["low", "low, later"]


def test_a_dead_letter_keeps_its_priority(channel, broker_url):
    declare(channel, "q", arguments={"x-priority-ageing": 50})
    publish(channel, "q", "x", priority=7)
    channel.basic_get("q").reject()
    with BrokerAdmin(broker_url) as operator:
        wait_until(lambda: channel.queue_sizes("q").unacked == 0)
        (letter,) = operator.dead_letters.page("q")
        assert letter.rank == 255 - 7


@pytest.mark.parametrize("value", [0, -1, "60", 1.5])
def test_an_ageing_that_is_none_is_refused(channel, value):
    with pytest.raises(InvalidArgument, match="x-priority-ageing"):
        declare(channel, "q", arguments={"x-priority-ageing": value})
