"""Acks that threads give before they begin to work: the loop sends them, several together, and none waits for long."""

from __future__ import annotations

import threading

from tests.support.inbox import Inbox, declare, publish


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


def test_several_leave_in_one_call(connect, loop, monkeypatch):
    running, inbox, publisher = deliver(connect, loop, 20)
    commands, calls = inbox.channel.session.commands, []
    post = commands.send_nowait
    monkeypatch.setattr(
        commands, "send_nowait", lambda script, keys, *tags, **options: (calls.append(tags), post(script, keys, *tags, **options))
    )
    ack_in_a_thread(inbox.messages)
    running.run(lambda: publisher.queue_sizes("q").unacked == 0)
    assert [len(tags) for tags in calls] == [20]


def test_those_given_while_the_loop_ends_leave_as_well(connect, loop, monkeypatch):
    running, inbox, publisher = deliver(connect, loop, 8)
    connection = inbox.connection
    transport = connection.transport
    transport.unregister_from_event_loop(connection.connection, running.hub)
    # A thread that asked just before the end was told that the loop would see to it.
    monkeypatch.setattr(transport.delivery_loop, "ticks_when_woken", lambda active_tasks: True)
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
