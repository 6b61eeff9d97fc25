"""A claim whose reply is read later, by the loop of a worker whose tasks run elsewhere."""

from __future__ import annotations

import pytest

from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


def claim_is_out(inbox):
    return inbox.connection.transport.delivery_loop.server.fetcher.pending is not None


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
    connection.transport.delivery_loop.server.fetcher.pool_is_concurrent = True
    publish(publisher, "q", "in work")
    running.run(lambda: len(inbox.messages) == 1)
    publish(publisher, "q", "claimed")
    running.run(lambda: claim_is_out(inbox))
    return running, inbox, publisher


@pytest.mark.parametrize("prefetch", [2, 7, 100])
def test_messages_are_delivered_in_order(connect, loop, prefetch):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", *range(300))
    inbox = Inbox(connection.channel(), "q", prefetch=prefetch, ack=False)
    running = loop(connection)
    connection.transport.delivery_loop.server.fetcher.pool_is_concurrent = True
    seen_out = []

    def ack_later():
        seen_out.append(claim_is_out(inbox))
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


def test_a_wakeup_that_comes_while_it_is_out_causes_a_claim(connect, loop):
    connection, publisher = connect(polling_interval=30), connect().channel()
    inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
    running = loop(connection)
    connection.transport.delivery_loop.server.fetcher.pool_is_concurrent = True
    publish(publisher, "q", "in work")
    running.run(lambda: len(inbox.messages) == 1 and connection.transport.delivery_loop.server.session.waiter.waiting)
    inbox.channel.queue_consumers.add_candidates(["q"])
    connection.transport.delivery_loop.server.session.waker.wake()
    running.run(lambda: claim_is_out(inbox))
    publish(publisher, "q", "next")
    start = machine_time()
    running.run(lambda: len(inbox.messages) == 2)
    assert machine_time() - start < 15


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


@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_a_server_that_does_not_answer_it_is_given_up(connect, loop, server):
    publisher = connect().channel()
    with Proxy(lambda: server.port) as proxy:
        connection = connect(proxy.url(), socket_timeout=1)
        inbox = Inbox(connection.channel(), "q", prefetch=10, ack=False)
        running = loop(connection)
        connection.transport.delivery_loop.server.fetcher.pool_is_concurrent = True
        publish(publisher, "q", "in work")
        running.run(lambda: len(inbox.messages) == 1)
        proxy.lose_replies()
        inbox.channel.queue_consumers.add_candidates(["q"])
        connection.transport.delivery_loop.server.session.waker.wake()
        with pytest.raises(CONNECTION_ERRORS):
            running.run(lambda: False, 20)


@pytest.mark.parametrize("prefetch", [2, 10, 0])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_claim_whose_reply_is_read_later_is_fair_too(connect, loop, prefetch, channels):
    """As beside a pool of processes: acks come when the loop has turned."""
    publisher = connect().channel()
    for name, count in (("a", 300), ("b", 5)):
        declare(publisher, name)
        publish(publisher, name, *range(count))
    connection = connect()
    names = ["ab"] if channels == 1 else ["a", "b"]
    order, inboxes = [], []
    for part in names:
        inbox = Inbox(connection.channel(), *part, prefetch=prefetch, ack=False)
        inboxes.append(inbox)

        def take(message, inbox=inbox):
            order.append(message.delivery_info["routing_key"])
            inbox.messages.append(message)

        inbox.consumer.on_message = take
    running = loop(connection)
    fetcher = connection.transport.delivery_loop.server.fetcher
    fetcher.pool_is_concurrent = True
    posted = []

    def ack_later():
        posted.append(fetcher.pending is not None)
        for inbox in inboxes:
            if inbox.messages:
                inbox.messages.pop(0).ack()
        running.hub.call_soon(ack_later)

    running.hub.call_soon(ack_later)
    running.run(lambda: len(order) == 305, 30)
    assert any(posted) or not prefetch
    assert [at for at, name in enumerate(order) if name == "b"][-1] < 14, order
