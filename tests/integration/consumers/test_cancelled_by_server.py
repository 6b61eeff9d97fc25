"""A queue is deleted below its consumers: they are cancelled, as by RabbitMQ's `consumer_cancel_notify`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import amqp
import kombu
import pytest
from kombu.mixins import ConsumerMixin

from celery_redis_plus.errors import ConsumerCancelled
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.hubs import Loop

#: Seconds within which a consumer hears of it, on a busy machine; without a wakeup it would take 20 s.
SOON_S = 10.0


def drain_until(connection: kombu.Connection, reached: Callable[[], bool]) -> None:
    """Take deliveries until `reached` returns true."""
    deadline = time.monotonic() + SOON_S
    while not reached():
        assert time.monotonic() < deadline, "the consumer was told nothing"
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)


def drain_until_cancelled(connection: kombu.Connection) -> ConsumerCancelled:
    with pytest.raises(amqp.ConsumerCancelled) as raised:
        drain_until(connection, lambda: False)
    assert isinstance(raised.value, ConsumerCancelled)
    return raised.value


@pytest.mark.parametrize("arguments", [{"durable": True}, {"auto_delete": True}, {"durable": True, "expires": 60}])
def test_the_consumer_of_a_deleted_queue_is_cancelled_once_and_the_others_go_on(connect, arguments, redis_client):
    connection, other = connect(), connect().channel()
    gone = Inbox(connection.channel(), kombu.Queue("gone", **arguments))
    kept = Inbox(connection.channel(), "kept")
    publish(other, "gone", "before")
    gone.drain(1)
    other.queue_delete("gone")
    error = drain_until_cancelled(connection)
    assert "queue 'gone' was deleted" in str(error)
    assert isinstance(error, connection.connection_errors)
    publish(other, "kept", *range(3))
    assert kept.drain(3) == [0, 1, 2]
    assert not redis_client.keys("consumer*:{gone}*")
    # The queue may be declared and consumed again on the same channel.
    again = Inbox(gone.channel, kombu.Queue("gone", **arguments))
    publish(other, "gone", "after")
    assert again.drain(1) == ["after"]
    gone.cancel()


def test_each_consumer_is_told_in_its_own_way(connect):
    connection, other = connect(), connect().channel()
    declare(other, "q")
    channel, told = connection.channel(), []
    for tag in ("first", "second"):
        channel.basic_consume("q", consumer_tag=tag, on_cancel=told.append)
    kombu.Queue("q", channel=connection.channel()).consume(consumer_tag="third", on_cancel=told.append)
    channel.basic_consume("q", consumer_tag="fourth")
    channel.basic_consume("q", consumer_tag="fifth")
    channel.basic_cancel("second")
    other.queue_delete("q")
    errors = [str(drain_until_cancelled(connection)) for _ in range(2)]
    assert [error.split()[1] for error in errors] == ["fourth", "fifth"]
    drain_until(connection, lambda: len(told) == 2)
    assert sorted(told) == ["first", "third"]
    # A cancel by the client calls none, and the tags are free.
    declare(other, "q")
    channel.basic_consume("q", consumer_tag="first", on_cancel=told.append)
    channel.basic_cancel("first")
    assert len(told) == 2


def test_an_event_loop_tells_it(connect, loop: Callable[[kombu.Connection], Loop]):
    connection, other = connect(), connect().channel()
    declare(other, "q", "r")
    told: list[str] = []
    connection.channel().basic_consume("q", consumer_tag="polite", on_cancel=told.append)
    Inbox(connection.channel(), "r")
    running = loop(connection)
    other.queue_delete("q")
    running.run(lambda: told == ["polite"], SOON_S)
    other.queue_delete("r")
    with pytest.raises(amqp.ConsumerCancelled):
        running.run(lambda: False, SOON_S)


def test_a_consumer_of_a_queue_that_never_was_declared_is_left_alone(connect):
    connection, other = connect(visibility_timeout=3), connect().channel()
    inbox = Inbox(connection.channel(), kombu.Queue("early", no_declare=True))
    service = inbox.channel.session.service
    looks = service.figures()["sweeps"]
    Inbox(connection.channel(), "other")
    publish(other, "other", "x")
    wait_until(lambda: (inbox.pump(0.05), service.figures()["sweeps"] > looks + 2)[1], SOON_S)
    publish(other, "early", "first")
    assert "first" in inbox.drain(1)


def test_a_queue_that_is_declared_again_at_once_keeps_its_consumers(connect):
    connection, other = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q")
    other.queue_delete("q")
    declare(other, "q")
    publish(other, "q", "new")
    assert inbox.drain(1) == ["new"]


def test_what_a_consumer_holds_of_other_queues_stays_its_own(connect):
    connection, other = connect(), connect().channel()
    held = Inbox(connection.channel(), "kept", ack=False)
    Inbox(connection.channel(), "gone")
    publish(other, "kept", *range(3))
    held.drain(3)
    other.queue_delete("gone")
    drain_until_cancelled(connection)
    assert other.queue_sizes("kept").unacked == 3
    for message in held.messages:
        message.ack()
    wait_until(lambda: (held.pump(0.05), other.queue_sizes("kept").unacked == 0)[1], SOON_S)


def test_a_queue_is_not_declared_again_while_its_messages_are_freed(connect, redis_client, monkeypatch):
    """A deletion of many messages takes longer than the second look at the queue."""
    connection, other = connect(), connect().channel()
    Inbox(connection.channel(), "q", prefetch=1, ack=False)
    publish(other, "q", *range(3))
    queues, told = other.session.queues, []
    free_page = queues.free_page

    def free_late(*args):
        if not told:
            told.append(drain_until_cancelled(connection))
        return free_page(*args)

    monkeypatch.setattr(queues, "free_page", free_late)
    other.queue_delete("q")
    assert told
    assert not redis_client.exists("meta:{q}")


def test_a_mixin_declares_the_queue_again_and_goes_on(connect, broker_url):
    other, exchange = connect().channel(), kombu.Exchange("e", "topic")

    class Worker(ConsumerMixin):
        def __init__(self, connection: kombu.Connection) -> None:
            self.connection = connection
            self.bodies: list[str] = []
            self.began = 0

        def get_consumers(self, consumer, channel):
            return [consumer([kombu.Queue("q", exchange, routing_key="k")], on_message=self.take, accept=None)]

        def on_consume_ready(self, *args, **kwargs):
            self.began += 1
            if self.began == 1:
                other.queue_delete("q")
            else:
                kombu.Producer(other, exchange).publish("after", routing_key="k")

        def take(self, message):
            message.ack()
            self.bodies.append(message.payload)
            self.should_stop = True

    worker = Worker(connect())
    worker.run()
    assert worker.bodies == ["after"]
    assert worker.began == 2
