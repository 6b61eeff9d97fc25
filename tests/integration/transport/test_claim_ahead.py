"""A claim whose reply is read later, by the loop of a worker whose tasks run elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from celery_redis_plus.transport.failures import CONNECTION_ERRORS
from tests.support.inbox import Inbox, declare, publish
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


def ahead_of(inbox):
    return inbox.connection.transport.poller.claiming.ahead


def sizes_of(publisher):
    sizes = publisher.queue_sizes("q")
    return sizes.ready, sizes.unacked


@pytest.fixture
def busy(connect, loop):
    """A loop beside a pool that holds one message, with a claim out that the next message has caused."""
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
    running = loop(connection)
    connection.transport.poller.claiming.works_beside = True
    publish(publisher, "q", "in work")
    running.run(lambda: len(inbox.messages) == 1)
    publish(publisher, "q", "claimed")
    running.run(lambda: ahead_of(inbox).out)
    return running, inbox, publisher


@pytest.mark.parametrize("prefetch", [2, 7, 100])
def test_messages_are_delivered_in_order(connect, loop, prefetch):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(300))
    inbox = Inbox(connection.channel(), "q", prefetch=prefetch, ack=False)
    running = loop(connection)
    connection.transport.poller.claiming.works_beside = True
    seen_out = []

    def ack_later():
        seen_out.append(ahead_of(inbox).out)
        for message in inbox.messages:
            if not message.acknowledged:
                message.ack()
                break
        running.hub.call_soon(ack_later)

    running.hub.call_soon(ack_later)
    running.run(lambda: len(inbox.messages) == 300)
    assert inbox.bodies == list(range(300))
    assert any(seen_out)


def test_its_message_is_delivered_by_a_later_turn(busy):
    running, inbox, _ = busy
    running.run(lambda: len(inbox.messages) == 2)
    assert inbox.bodies == ["in work", "claimed"]


def test_a_bell_that_rings_while_it_is_out_is_heard(connect, loop):
    connection, publisher = connect(polling_interval=30), connect().channel()
    inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
    running = loop(connection)
    connection.transport.poller.claiming.works_beside = True
    publish(publisher, "q", "in work")
    running.run(lambda: len(inbox.messages) == 1 and connection.transport.session.waiter.armed)
    inbox.channel.all_hot()
    connection.transport.session.waker.wake()
    running.run(lambda: ahead_of(inbox).out)
    publish(publisher, "q", "next")
    start = time.monotonic()
    running.run(lambda: len(inbox.messages) == 2)
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("how", ["cancel", "channel", "connection", "loop"])
def test_what_it_brings_goes_back_when_the_consumer_ends(busy, how):
    running, inbox, publisher = busy
    transport = inbox.connection.transport
    if how == "cancel":
        inbox.consumer.cancel()
    elif how == "channel":
        inbox.channel.close()
    else:
        transport.unregister_from_event_loop(inbox.connection.connection, running.hub)
    if how == "loop":
        inbox.connection.drain_events(timeout=5)
        assert inbox.bodies == ["in work", "claimed"]
        return
    if how == "connection":
        inbox.connection.close()
    # A channel that closes, unlike a consumer that is cancelled, also returns what was delivered.
    assert sizes_of(publisher) == ((1, 1) if how == "cancel" else (2, 0))


def test_what_it_brings_goes_back_when_the_connection_breaks(busy):
    running, inbox, publisher = busy
    inbox.connection.transport.session.abandon()
    with pytest.raises(CONNECTION_ERRORS):
        running.run(lambda: False)
    inbox.connection.close()
    wait_until(lambda: publisher.queue_sizes("q").ready == 2, 10)


def test_a_server_that_does_not_answer_it_is_given_up(connect, loop, server):
    publisher = connect().channel()
    with Proxy(lambda: server.port) as proxy:
        connection = connect(proxy.url(), socket_timeout=1)
        inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
        running = loop(connection)
        connection.transport.poller.claiming.works_beside = True
        publish(publisher, "q", "in work")
        running.run(lambda: len(inbox.messages) == 1)
        proxy.lose_replies()
        inbox.channel.all_hot()
        connection.transport.session.waker.wake()
        with pytest.raises(CONNECTION_ERRORS):
            running.run(lambda: False, 20)


# -- behind the end of a solo worker's task ---------------------------------------------------------------------------------


def test_a_task_that_has_ended_claims_the_next_one_before_its_delivery_is_over(worked):
    out = []

    def work(message):
        message.note_ended()
        message.ack()
        out.append(ahead_of(inbox).out)

    running, inbox, publisher = worked(work, prefetch=1, count=4)
    running.run(lambda: len(inbox.messages) == 4)
    assert inbox.bodies == [0, 1, 2, 3]
    assert out == [True, True, True, False]
    running.run(lambda: sizes_of(publisher) == (0, 0))


def test_an_ack_behind_which_work_may_come_claims_nothing(worked):
    out = []

    def work(message):
        message.ack()
        out.append(ahead_of(inbox).out)

    running, inbox, _ = worked(work, prefetch=1, count=4)
    running.run(lambda: len(inbox.messages) == 4)
    assert out == [False] * 4


def test_a_queue_with_rules_is_claimed_from_when_the_delivery_is_over(worked):
    out = []

    def work(message):
        message.note_ended()
        message.ack()
        out.append(ahead_of(inbox).out)

    running, inbox, _ = worked(work, prefetch=1, count=4, arguments={"x-single-active-consumer": True})
    running.run(lambda: len(inbox.messages) == 4)
    assert out == [False] * 4


def test_what_the_end_of_a_task_has_claimed_goes_back_when_the_worker_ends(worked):
    def work(message):
        message.note_ended()
        message.ack()
        raise SystemExit

    running, inbox, publisher = worked(work, prefetch=1, count=4)
    with pytest.raises(SystemExit):
        running.run(lambda: False)
    inbox.connection.close()
    assert sizes_of(publisher) == (3, 0)


def test_an_ack_whose_claim_meets_a_lost_connection_leaves_over_another_one(worked):
    def work(message):
        with socket.socket(fileno=os.dup(inbox.connection.transport.session.wire.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        message.note_ended()
        message.ack()

    running, inbox, publisher = worked(work, prefetch=1, count=4)
    with pytest.raises(CONNECTION_ERRORS):
        running.run(lambda: False)
    inbox.connection.close()
    wait_until(lambda: sizes_of(publisher) == (3, 0), 10)


# -- before a solo worker's last task ---------------------------------------------------------------------------------------


def begins(message):
    """Ack as a worker without late acks does when a task begins."""
    message.note_early()
    message.ack()


def test_the_last_of_several_short_tasks_claims_before_it_runs(worked):
    out = []

    def work(message):
        begins(message)
        out.append(ahead_of(inbox).out)

    running, inbox, publisher = worked(work, prefetch=4, count=12)
    running.run(lambda: len(inbox.messages) == 12)
    assert inbox.bodies == list(range(12))
    assert out == [False, False, False, True] * 2 + [False] * 4
    running.run(lambda: sizes_of(publisher) == (0, 0))


def test_behind_a_long_task_nothing_is_claimed(worked, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.transport.claiming.SHORT_S", 0.0)
    out = []

    def work(message):
        begins(message)
        out.append(ahead_of(inbox).out)

    running, inbox, _ = worked(work, prefetch=1, count=4)
    running.run(lambda: len(inbox.messages) == 4)
    assert out == [False] * 4


@pytest.fixture
def surprised(worked):
    """Serve 8 messages, of which the fourth takes until `wait` returns; return what `worked` does."""

    def start(wait):
        def work(message):
            begins(message)
            if message.payload == 3:
                assert ahead_of(inbox).out
                wait(inbox, publisher)

        running, inbox, publisher = worked(work, prefetch=4, count=8)
        return running, inbox, publisher

    return start


def test_what_was_claimed_before_a_long_task_goes_back_while_that_runs(surprised):
    seen = []

    def wait(_, publisher):
        wait_until(lambda: sizes_of(publisher) == (4, 0), 10)
        elsewhere = publisher.basic_get("q")
        seen.append((elsewhere.payload, elsewhere.delivery_info["redelivered"]))
        elsewhere.ack()

    running, inbox, publisher = surprised(wait)
    running.run(lambda: len(inbox.messages) == 7)
    assert seen == [(4, False)]
    assert inbox.bodies == [0, 1, 2, 3, 5, 6, 7]
    assert not any(message.delivery_info["redelivered"] for message in inbox.messages)
    running.run(lambda: sizes_of(publisher) == (0, 0))


def test_it_goes_back_over_another_connection_where_its_own_is_lost(surprised):
    def wait(inbox, publisher):
        wait_until(lambda: sizes_of(publisher) == (0, 4), 10)
        with socket.socket(fileno=os.dup(inbox.connection.transport.session.wire.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: sizes_of(publisher) == (4, 0), 10)

    running, inbox, publisher = surprised(wait)
    with pytest.raises(CONNECTION_ERRORS):
        running.run(lambda: False)
    assert inbox.bodies == [0, 1, 2, 3]
    inbox.connection.close()
    assert sizes_of(publisher) == (4, 0)


def test_the_answer_of_a_server_that_stands_still_is_waited_for(worked, server, monkeypatch):
    looks = []

    def work(message):
        if message.payload != 3:
            begins(message)
            return
        wire = inbox.channel.session.wire
        collect = wire.collect
        monkeypatch.setattr(wire, "collect", lambda: (collect(), looks.append(ahead_of(inbox).out)))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            begins(message)
            wait_until(lambda: len(looks) > 3, 10)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: sizes_of(publisher) == (4, 0), 10)

    running, inbox, publisher = worked(work, prefetch=4, count=8)
    running.run(lambda: len(inbox.messages) == 8 and sizes_of(publisher) == (0, 0))
    assert inbox.bodies == list(range(8))
    assert looks[:3] == [True] * 3


def test_a_loop_and_the_thread_that_gives_back_never_deliver_one_message_twice(worked, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.transport.claim_ahead.LONG_S", 0.0)
    monkeypatch.setattr("celery_redis_plus.transport.courier.LOOK_S", 0.00005)
    monkeypatch.setattr("celery_redis_plus.transport.claiming.SHORT_S", 10.0)
    returned = []

    def work(message):
        begins(message)
        if message.payload % 3 == 0:
            # For as long as it may take a claim to come, and to go back.
            time.sleep(message.payload % 7 / 10_000)

    running, inbox, publisher = worked(work, prefetch=2, count=2_000)
    settler = inbox.channel.session.settler
    give_back = settler.settle_or_order

    def note(messages, settlement):
        returned.append(len(messages))
        give_back(messages, settlement)

    monkeypatch.setattr(settler, "settle_or_order", note)
    running.run(lambda: len(inbox.messages) >= 2_000 and sizes_of(publisher) == (0, 0), 60)
    assert sorted(inbox.bodies) == list(range(2_000))
    assert not any(message.delivery_info["redelivered"] for message in inbox.messages)
    assert returned


def test_what_was_claimed_before_a_task_goes_back_when_that_ends_the_worker(worked):
    def work(message):
        begins(message)
        if ahead_of(inbox).out:
            raise SystemExit

    running, inbox, publisher = worked(work, prefetch=4, count=8)
    with pytest.raises(SystemExit):
        running.run(lambda: False)
    inbox.connection.close()
    assert sizes_of(publisher) == (4, 0)
