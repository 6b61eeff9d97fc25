"""Connections that a program drops without closing them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("error")


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def consume(broker_url, **how):
    inbox = Inbox(kombu.Connection(broker_url).channel(), "q", **how)
    inbox.pump(0.2)
    return inbox


def test_they_are_freed_by_the_collector_and_their_consumers_leave_the_lists(connect, broker_url):
    watching = connect().channel()
    declare(watching, "q")
    Inbox(watching, "other").rest(0.05)
    gc.collect()
    before = descriptors()
    dropped = [consume(broker_url) for _ in range(10)]
    freed = [weakref.ref(thing) for one in dropped for thing in (one.channel, one.channel.session, one.connection.transport)]
    with BrokerAdmin(broker_url) as operator:
        assert len(operator.consumers("q")) == 10
        del dropped
        gc.collect()
        assert [thing() for thing in freed if thing() is not None] == []
        wait_until(lambda: not operator.consumers("q"))
    # Ten connections had more than thirty; the maintenance tasks may have opened theirs meanwhile.
    wait_until(lambda: descriptors() <= before + 5)


def test_their_unacked_messages_go_back(connect, broker_url):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(5))
    dropped = consume(broker_url, ack=False)
    assert dropped.bodies == [0]
    assert publisher.queue_sizes("q").unacked == 5
    del dropped
    gc.collect()
    wait_until(lambda: publisher.queue_sizes("q").ready == 5)
    inbox = Inbox(connect().channel(), "q")
    assert inbox.drain(5) == list(range(5))
    assert [message.delivery_info["redelivered"] for message in inbox.messages] == [True] + [False] * 4


def test_one_whose_message_is_still_used_is_not_freed(connect, broker_url):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", 1)
    dropped = consume(broker_url, ack=False)
    message = dropped.messages[0]
    del dropped
    gc.collect()
    message.ack()
    wait_until(lambda: publisher.queue_sizes("q").unacked == 0)
    assert publisher.queue_sizes("q").ready == 0


def test_a_subscriber_that_was_dropped_is_freed_too(connect, broker_url):
    queue = kombu.Queue("f", kombu.Exchange("fx", "fanout"), durable=True)
    connection = kombu.Connection(broker_url)
    inbox = Inbox(connection.channel(), queue)
    inbox.pump(0.2)
    freed = weakref.ref(inbox.channel.session)
    del inbox, connection
    # The maintenance tasks may be looking at its owner.
    wait_until(lambda: (gc.collect(), freed() is None)[1])
