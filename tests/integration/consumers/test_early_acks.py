"""Acks of messages that are acked before the work on them begins: they have left the process when it does."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.support.inbox import Inbox, declare, publish
from tests.support.program import run_forked
from tests.support.waiting import wait_until

#: Acks a message early, in the loop's thread or in another one, and is killed as the work on it begins.
KILLED = """
import os, signal, sys, threading
import kombu
from kombu.asynchronous import Hub

def work(message):
    message.mark_acked_early()
    message.ack()
    os.kill(os.getpid(), signal.SIGKILL)

begun = []

def begin(message):
    if not begun:
        begun.append(message)
        threading.Thread(target=work, args=(message,)).start() if sys.argv[2] == "thread" else work(message)

connection = kombu.Connection(sys.argv[1])
channel = connection.channel()
channel.basic_qos(0, 4)
consumer = kombu.Consumer(channel, [kombu.Queue("q")], on_message=begin)
consumer.consume()
hub = Hub()
connection.register_with_event_loop(hub)
hub.run_forever()
"""


def deliver(connect, loop, count):
    """Return the loop, the inbox with `count` messages that were noted as acked early, and a channel to look with."""
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(count))
    inbox = Inbox(connection.channel(), "q", prefetch=count, ack=False)
    running = loop(connection)
    running.run(lambda: len(inbox.messages) == count)
    for message in inbox.messages:
        message.mark_acked_early()
    return running, inbox, publisher


def ack_in_a_thread(messages):
    thread = threading.Thread(target=lambda: [message.ack() for message in messages])
    thread.start()
    thread.join()


def test_a_single_one_leaves_while_the_consumer_has_nothing_else_to_do(connect, loop):
    running, inbox, publisher = deliver(connect, loop, 8)
    ack_in_a_thread(inbox.messages[:1])
    running.run(lambda: publisher.queue_sizes("q").unacked == 7)


def test_those_given_while_the_loop_ends_leave_as_well(connect, loop):
    running, inbox, publisher = deliver(connect, loop, 8)
    connection = inbox.connection
    transport = connection.transport
    transport.unregister_from_event_loop(connection.connection, running.hub)
    ack_in_a_thread(inbox.messages)
    transport.session.commands.command("PING")
    assert publisher.queue_sizes("q").unacked == 0


def test_those_given_when_the_connection_is_lost_leave_over_another_one(connect, loop):
    _, inbox, publisher = deliver(connect, loop, 8)
    session = inbox.channel.session
    ack_in_a_thread(inbox.messages)
    session.abandon()
    inbox.connection.transport.delivery_loop.detach()
    assert session.service.flush(10)
    assert publisher.queue_sizes("q").unacked == 0


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_kill_as_the_work_begins_repeats_nothing(where, connect, broker_url):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(4))
    assert run_forked(KILLED, broker_url, where).returncode == -signal.SIGKILL
    # The others were not begun, and come back when their process is missed.
    wait_until(lambda: publisher.queue_sizes("q").unacked + publisher.queue_sizes("q").ready == 3, 5)


def test_one_removes_its_message_wherever_that_stands_by_now(connect, loop, redis_client):
    running, inbox, publisher = deliver(connect, loop, 2)
    tag = inbox.messages[0].delivery_tag
    # As after a standstill longer than its lease: another process has put it back.
    redis_client.zrem("messages_index:{q}", tag)
    redis_client.zadd("queue:{q}", {tag: 1})
    ack_in_a_thread(inbox.messages[:1])
    running.run(lambda: publisher.queue_sizes("q").ready == 0 and len(redis_client.keys("message:{q}:*")) == 1)
