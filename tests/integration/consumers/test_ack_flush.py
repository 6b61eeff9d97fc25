"""Acks given inside a turn of the loop, as a solo worker gives them: they leave with the next claim, or after a delay."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time

import kombu
import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.acks import QUICK_WORK_S
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from tests.support.inbox import Inbox, declare, publish
from tests.support.program import run_forked
from tests.support.waiting import wait_until


def ack_calls(channel, monkeypatch):
    """Return a list of the tags that each call acks from now on: a call of `ack`, or of `claim`, which carries acks."""
    commands, calls = channel.session.commands, []
    send, call = commands.send_nowait, commands.call

    def note(script, arguments):
        if script.name == "ack":
            calls.append(arguments)
        elif script.name == "claim" and (count := arguments[6]):
            calls.append(arguments[8 : 7 + 2 * count : 2])

    def noted_send(script, keys, *arguments, **options):
        note(script, arguments)
        send(script, keys, *arguments, **options)

    def noted_call(script, keys, *arguments):
        note(script, arguments)
        return call(script, keys, *arguments)

    monkeypatch.setattr(commands, "send_nowait", noted_send)
    monkeypatch.setattr(commands, "call", noted_call)
    return calls


@pytest.mark.parametrize("early", [True, False])
def test_an_ack_leaves_while_the_work_after_it_goes_on(worked, early):
    left_by_then = []

    def work(message):
        if early:
            message.mark_acked_early()
        message.ack()
        if not left_by_then:
            wait_until(lambda: publisher.queue_sizes("q").unacked == 3, 10)
            left_by_then.append(threading.get_ident())

    running, _, publisher = worked(work, prefetch=4, count=8)
    running.run(lambda: bool(left_by_then))
    assert left_by_then == [threading.get_ident()]


def test_acks_of_short_work_leave_with_the_next_claim(worked, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.broker.consumers.acks.QUICK_WORK_S", 10.0)
    done = []

    def work(message):
        message.ack()
        done.append(message.delivery_tag)

    running, inbox, publisher = worked(work, prefetch=4, count=8)
    calls = ack_calls(inbox.channel, monkeypatch)
    running.run(lambda: len(done) == 8 and publisher.queue_sizes("q").unacked == 0)
    assert [tag for call in calls for tag in call] == done
    # A turn of the loop ends early on a busy machine, and sends what there is.
    assert len(calls) < 8


def test_the_ack_of_finished_work_leaves_before_other_work_begins(worked):
    unacked = []

    def work(message):
        left = 4 - len(unacked)
        # Over another connection: the server may hear of it before it reads the ack that was sent.
        wait_until(lambda: publisher.queue_sizes("q").unacked <= left, 5)
        unacked.append(publisher.queue_sizes("q").unacked)
        took_until = clock.now_s() + QUICK_WORK_S
        while clock.now_s() < took_until:
            pass
        message.ack()

    running, inbox, publisher = worked(work, prefetch=4, count=4)
    # The maintenance thread sends none of them.
    inbox.channel.consumer_session.acknowledger.flush_scheduled = True
    running.run(lambda: len(unacked) == 4)
    assert unacked == [4, 3, 2, 1]


def test_the_ack_of_what_a_pool_has_finished_leaves_before_the_loop_sleeps(connect, loop, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.broker.consumers.acks.QUICK_WORK_S", 100.0)
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q", prefetch=4, ack=False)
    running = loop(connection)
    connection.transport.delivery_loop.set_worker("w", pool_is_concurrent=True, check_shutdown=lambda: None)
    # The maintenance thread sends none of them.
    inbox.channel.consumer_session.acknowledger.flush_scheduled = True
    publish(publisher, "q", "worked on for an hour", "delivered a moment ago")
    running.run(lambda: len(inbox.messages) == 2)
    running.hub.call_soon(inbox.messages[0].ack)
    running.run(lambda: publisher.queue_sizes("q").unacked == 1)


CHILD = """
import multiprocessing, sys
import kombu
from celery_redis_plus.broker.consumers import acks
from tests.support.inbox import Inbox

acks.QUICK_WORK_S = 100.0

def consume():
    inbox = Inbox(kombu.Connection(sys.argv[1]).channel(), "q", prefetch=20)
    inbox.drain(10)

child = multiprocessing.get_context("fork").Process(target=consume)
child.start()
child.join()
"""


def test_a_child_of_multiprocessing_that_returns_gives_its_acks_away(connect, broker_url):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(15))
    ended = run_forked(CHILD, broker_url)
    assert ended.returncode == 0, ended.stdout
    sizes = publisher.queue_sizes("q")
    assert (sizes.ready, sizes.unacked) == (5, 0)


@pytest.mark.parametrize("early", [True, False])
def test_nothing_is_claimed_while_the_loop_works(worked, early):
    ready = []

    def work(message):
        if early:
            message.mark_acked_early()
        message.ack()
        ready.append(publisher.queue_sizes("q").ready)

    running, _, publisher = worked(work, prefetch=1, count=4)
    running.run(lambda: len(ready) == 4)
    assert ready == [3, 2, 1, 0]


def test_an_ack_that_meets_a_lost_connection_leaves_over_another_one(worked):
    def work(message):
        with socket.socket(fileno=os.dup(inbox.connection.transport.session.commands.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        message.ack()

    running, inbox, publisher = worked(work, prefetch=1, count=4)
    with pytest.raises(CONNECTION_ERRORS):
        running.run(lambda: False)
    inbox.connection.close()
    wait_until(lambda: publisher.queue_sizes("q").unacked == 0, 10)
    assert publisher.queue_sizes("q").ready == 3


def test_a_close_waits_for_acks_that_another_thread_is_about_to_send(connect, loop, monkeypatch):
    """As the maintenance thread does, which sends the acks that a loop leaves behind."""
    connection, publisher = connect(), connect().channel()
    inbox = Inbox(connection.channel(), "q", prefetch=3, ack=False)
    publish(publisher, "q", *range(3))
    loop(connection).run(lambda: len(inbox.messages) == 3)
    acknowledger, taken = inbox.channel.consumer_session.acknowledger, threading.Event()
    acknowledger.flush_scheduled = True
    for message in inbox.messages:
        message.ack()
    take = acknowledger._take_batched  # noqa: SLF001 - the moment at which another thread has them

    def take_slowly():
        acks = take()
        taken.set()
        # It loses the processor here, and the close goes on meanwhile if nothing holds it.
        time.sleep(0.2)
        return acks

    monkeypatch.setattr(acknowledger, "_take_batched", take_slowly)
    sender = threading.Thread(target=acknowledger.flush)
    sender.start()
    assert taken.wait(10)
    connection.close()
    sizes = publisher.queue_sizes("q")
    sender.join()
    assert (sizes.ready, sizes.unacked) == (0, 0)


def test_an_ack_leaves_when_its_turn_ends_by_an_exception(worked):
    def work(message):
        message.ack()
        raise SystemExit

    running, inbox, publisher = worked(work, prefetch=4, count=8)
    with pytest.raises(SystemExit):
        running.run(lambda: False)
    assert not inbox.channel.consumer_session.acknowledger.has_batched
    wait_until(lambda: publisher.queue_sizes("q").unacked == 3, 10)


def test_an_ack_that_makes_room_for_others_leaves_at_once(worked):
    waiting = []

    def work(message):
        message.ack()
        waiting.append(inbox.channel.consumer_session.acknowledger.has_batched)

    running, inbox, _ = worked(work, prefetch=4, count=8, arguments={"x-max-unacked": 2})
    running.run(lambda: len(waiting) == 8)
    assert waiting == [False] * 8


#: Acks the messages of queue `q` in their callbacks, one a call of `drain_events`; then does what its second argument says.
CONSUMING = """
import os, signal, sys, time
from kombu import Connection, Consumer, Queue
import celery_redis_plus
connection = Connection(sys.argv[1])
channel = connection.channel()
channel.basic_qos(0, 1, False)
seen = []
consumer = Consumer(channel, [Queue("q", no_declare=True)], on_message=lambda message: (message.ack(), seen.append(1)))
consumer.consume()
while len(seen) < 20:
    connection.drain_events(timeout=10)
if sys.argv[2] == "ends later":
    time.sleep(0.5)
elif sys.argv[2] == "is killed later":
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[2] == "raises":
    raise SystemExit(1)
elif sys.argv[2] == "cancels":
    consumer.cancel()
elif sys.argv[2] == "closes the channel":
    channel.close()
elif sys.argv[2] == "closes the connection":
    connection.close()
"""


@pytest.mark.parametrize(
    "end", ["ends", "ends later", "is killed later", "raises", "cancels", "closes the channel", "closes the connection"]
)
def test_the_last_ack_of_a_process_that_ends_arrives(broker_url, connect, end):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", *range(20))
    run_forked(CONSUMING, broker_url, end)
    sizes = channel.queue_sizes("q")
    assert (sizes.ready, sizes.unacked) == (0, 0)


def test_an_ack_that_no_claim_follows_leaves_after_a_moment(connect):
    """However often claims took the acks along before it."""
    connection, other = connect(), connect().channel()
    channel = connection.channel()
    channel.basic_qos(0, 1)
    seen = []
    inbox = kombu.Consumer(channel, [kombu.Queue("q")], on_message=lambda message: (message.ack(), seen.append(message)))
    inbox.consume()
    for count in range(1, 31):
        publish(other, "q", count)
        while len(seen) < count:
            connection.drain_events(timeout=5)
        wait_until(lambda: other.queue_sizes("q").unacked == 0, 5)


def ack_and_drop(broker_url):
    """Ack a message on a connection that nobody closes; return the process' unacked messages."""
    channel = kombu.Connection(broker_url).default_channel
    channel.basic_get("q").ack()
    return channel.session.service.unacked_messages


def test_acks_of_a_connection_that_was_dropped_are_confirmed(connect, broker_url):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", 1)
    unacked_messages = ack_and_drop(broker_url)
    gc.collect()
    wait_until(lambda: len(unacked_messages) == 0, 10)
    assert channel.queue_sizes("q").unacked == 0
