"""Our consumers under kombu's event loop, as Celery's worker runs them."""

from __future__ import annotations

import time

import kombu
import pytest

from tests.support.hubs import Loop
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.mark.parametrize("prefetch", [0, 1, 3, 100])
def test_messages_are_delivered_and_acked_in_order(connect, loop, prefetch):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(300))
    inbox = Inbox(connection.channel(), "q", prefetch=prefetch)
    loop(connection).run(lambda: len(inbox.messages) == 300)
    assert inbox.bodies == list(range(300))


def test_an_idle_loop_is_woken_by_a_message_a_delay_and_a_broadcast(connect, loop):
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q", kombu.Queue("f", kombu.Exchange("news", "fanout"), durable=True))
    running = loop(connection)
    running.hub.call_later(0.1, publish, publisher, "q", "message")
    running.hub.call_later(0.1, kombu.Producer(publisher, kombu.Exchange("news", "fanout")).publish, "broadcast")
    publish(publisher, "q", "delayed", headers={"x-delay": 300})
    start, by_machine = time.monotonic(), machine_time()
    running.run(lambda: len(inbox.messages) == 3)
    assert sorted(inbox.bodies) == ["broadcast", "delayed", "message"]
    assert time.monotonic() - start >= 0.28
    assert machine_time() - by_machine < 1.5


def test_acks_of_a_later_turn_free_the_credit(connect, loop):
    """Celery acks from `call_soon`, or when a pool's process answers."""
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q", prefetch=2, ack=False)
    running = loop(connection)
    publish(publisher, "q", *range(40))

    def ack_later():
        for message in inbox.messages:
            if not message.acknowledged:
                message.ack()
        running.hub.call_later(0.002, ack_later)

    running.hub.call_soon(ack_later)
    running.run(lambda: len(inbox.messages) == 40 and all(message.acknowledged for message in inbox.messages))
    assert inbox.bodies == list(range(40))
    wait_until(lambda: (running.hub.call_soon(lambda: None), running.hub.run_once(), publisher.queue_sizes("q").unacked)[2] == 0)


@pytest.mark.parametrize("how", ["connection", "channel", "loop"])
def test_acks_given_just_before_the_end_arrive(connect, loop, how):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(10))
    inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
    running = loop(connection)
    running.run(lambda: len(inbox.messages) == 10)
    for message in inbox.messages[:7]:
        message.ack()
    if how == "loop":
        connection.transport.unregister_from_event_loop(connection.connection, running.hub)
    if how == "channel":
        inbox.channel.close()
    connection.close()
    sizes = publisher.queue_sizes("q")
    assert (sizes.ready, sizes.unacked) == (3, 0)


def test_many_messages_with_an_eta_that_has_passed_wait_for_no_timer(connect, loop, monkeypatch):
    """Celery sends each through its timer, of which the loop fires ten a turn, and then waits up to a second."""
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q")
    running = loop(connection)
    done = []
    inbox.consumer.on_message = lambda message: (message.ack(), running.hub.call_later(0, done.append, message))
    publish(publisher, "q", *range(200), headers={"eta": "2020-01-01T00:00:00+00:00"})
    waits, poll = [], running.hub.poller.poll

    def noting(timeout):
        events = poll(timeout)
        # It has waited for all of its time.
        waits.extend([timeout] * (not events and timeout > 0.1))
        return events

    monkeypatch.setattr(running.hub.poller, "poll", noting)
    running.run(lambda: len(done) == 200)
    assert len(waits) <= 1


def test_a_cut_connection_is_raised_out_of_the_loop_and_a_new_one_takes_its_place(connect, loop, redis_client):
    connection, hub_connection = connect(), None
    inbox = Inbox(connection.channel(), "q")
    running = loop(connection)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.05)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(connection.connection_errors):
        running.run(lambda: False, timeout_s=5)
    connection.collect()
    hub_connection = connect()
    again = Inbox(hub_connection.channel(), "q")
    hub_connection.transport.register_with_event_loop(hub_connection.connection, running.hub)
    publish(connect().channel(), "q", "x")
    running.run(lambda: again.bodies == ["x"])
    assert not inbox.messages


def test_a_slow_callback_does_not_keep_timers_waiting_for_the_whole_batch(connect, loop):
    """The solo pool runs the task inside the delivery; remote control has to get its turn."""
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q")
    inbox.consumer.on_message = lambda message: (time.sleep(0.02), inbox.messages.append(message), message.ack())
    publish(publisher, "q", *range(50))
    running = loop(connection)
    at = []
    running.run(lambda: inbox.messages)
    running.hub.call_later(0.0, lambda: at.append(len(inbox.messages)))
    running.run(lambda: at)
    assert at[0] < 10


def test_leaving_the_loop_leaves_nothing_in_it(connect):
    connection = connect()
    inbox = Inbox(connection.channel(), "q", kombu.Queue("f", kombu.Exchange("news", "fanout"), auto_delete=True))
    running = Loop(connection)
    publish(connect().channel(), "q", "x")
    running.run(lambda: inbox.messages)
    running.connection.transport.register_with_event_loop(connection.connection, running.hub)
    running.connection.transport.unregister_from_event_loop(connection.connection, running.hub)
    assert len(running.hub.readers) <= 1, "kombu's own waker is all that is left"
    assert not running.hub.on_tick
    running.close()
    publish(connect().channel(), "q", "y")
    assert inbox.drain(2) == ["x", "y"]


def test_a_disabled_prefetch_takes_one_message_at_a_time(connect, loop):
    """`worker_disable_prefetch` replaces `qos.can_consume` on the instance."""
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(10))
    inbox = Inbox(connection.channel(), "q", ack=False)
    free = [1]
    inbox.channel.qos.can_consume = lambda: bool(free[0])

    def take(message):
        inbox.messages.append(message)
        free[0] = 0

    inbox.consumer.on_message = take
    running = loop(connection)
    running.run(lambda: inbox.messages)
    for _ in range(5):
        running.hub.call_soon(lambda: None)
        running.hub.run_once()
    assert publisher.queue_sizes("q").unacked == 1
    free[0] = 1
    inbox.messages[0].ack()
    running.run(lambda: len(inbox.messages) == 2)
    assert inbox.bodies == [0, 1]
