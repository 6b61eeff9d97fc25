"""A subscriber that was cut off goes on where it was; what it had not settled comes again, flagged."""

from __future__ import annotations

import logging
import random
import threading

import pytest

from celery_redis_plus.maintenance.process_services import set_keeper
from celery_redis_plus.signals import BrokerBack, BrokerLost
from tests.integration.fanout.conftest import flags, news, reconnect, send
from tests.support.active_tasks import KnownWorker
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


def cut(redis_client):
    redis_client.client_kill_filter(_type="normal", skipme=True)


def broken(inbox, connection):
    with pytest.raises(connection.connection_errors):
        inbox.rest(quiet_s=5)


def test_unsettled_broadcasts_come_again_flagged_and_in_order_before_new_ones(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), news(), ack=False)
    send(connect().channel(), *range(5))
    inbox.drain(5)
    inbox.messages[0].ack()
    inbox.messages[3].ack()
    cut(redis_client)
    broken(inbox, connection)
    send(connect().channel(), "new")
    reconnect(connection)
    again = Inbox(connection.channel(), news())
    again.drain(4)
    assert flags(again) == [(1, True), (2, True), (4, True), ("new", False)]


def test_a_late_ack_over_the_broken_connection_settles(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), news(), ack=False)
    send(connect().channel(), 1, 2)
    inbox.drain(2)
    cut(redis_client)
    broken(inbox, connection)
    connection.collect()
    inbox.messages[1].ack()
    connection.ensure_connection(max_retries=3)
    again = Inbox(connection.channel(), news())
    assert again.exactly(1) == [1]


def test_what_a_worker_gives_up_later_wakes_its_subscriber(connect, redis_client, sleeps):
    connection, worker = connect(polling_interval=600), KnownWorker()
    inbox = Inbox(connection.channel(), news(), ack=False)
    send(connect().channel(), 1)
    inbox.drain(1)
    set_keeper(worker)
    try:
        cut(redis_client)
        broken(inbox, connection)
        reconnect(connection)
        again = Inbox(connection.channel(), news())
        sleeps.clear()
        consuming = threading.Thread(target=again.drain, args=(1, 20))
        consuming.start()
        assert sleeps.wait(10)
        worker.active = False
        consuming.join(10)
    finally:
        set_keeper(None)
    assert again.bodies == [1]


def test_the_registry_keeps_the_cursor_before_what_is_not_settled(connect):
    channel = connect().channel()
    inbox = Inbox(channel, news(), ack=False)
    send(channel, *range(5))
    inbox.drain(5)

    def lag():
        return channel.fanout_subscribers("news")[0].lag

    inbox.messages[0].ack()
    inbox.messages[2].ack()
    wait_until(lambda: lag() == 4)
    inbox.messages[1].ack()
    wait_until(lambda: lag() == 2)


def test_a_queue_that_was_bound_and_not_yet_consumed_misses_nothing_when_it_is_cut_off(connect, redis_client):
    connection = connect()
    news()(connection.default_channel).declare()
    publisher = connect()
    send(publisher.default_channel, 1)
    cut(redis_client)
    with pytest.raises(connection.connection_errors):
        connection.default_channel.queue_declare("other")
    reconnect(connection)
    assert Inbox(connection.channel(), news()).drain(1) == [1]


def test_two_connections_of_one_process_and_one_queue_get_everything_each(connect):
    """As two processes do, and as with kombu's redis transport: a subscriber is a queue of one connection."""
    one, two = Inbox(connect().channel(), news()), Inbox(connect().channel(), news())
    send(connect().channel(), *range(50))
    assert one.drain(50) == two.drain(50) == list(range(50))


def test_each_connection_resumes_its_own_place(connect, redis_client):
    connections = [connect(), connect()]
    inboxes = [Inbox(connection.channel(), news()) for connection in connections]
    publisher = connect().channel()
    send(publisher, 1)
    assert [inbox.drain(1) for inbox in inboxes] == [[1], [1]]
    send(publisher, 2, 3)
    assert inboxes[0].drain(3) == [1, 2, 3]
    cut(redis_client)
    for inbox, connection in zip(inboxes, connections, strict=True):
        broken(inbox, connection)
    send(connect().channel(), 4)
    for connection in connections:
        reconnect(connection)
    again = [Inbox(connection.channel(), news()) for connection in reversed(connections)][::-1]
    assert [before.bodies + after.rest() for before, after in zip(inboxes, again, strict=True)] == [[1, 2, 3, 4]] * 2


def test_an_orphan_that_nobody_adopts_is_given_up_and_logged(connect, redis_client, caplog):
    active_tasks = connect(subscriber_timeout=1)
    Inbox(active_tasks.channel(), "keeps maintenance going")
    connection = connect(subscriber_timeout=1)
    inbox = Inbox(connection.channel(), news())
    send(active_tasks.default_channel, 1)
    inbox.drain(1)
    redis_client.client_kill_filter(_id=connection.transport.session.commands.command("CLIENT", "ID"))
    with pytest.raises(connection.connection_errors):
        connection.default_channel.queue_declare("other")
    connection.collect()
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: "no reader came back" in caplog.text, 10)
    assert active_tasks.default_channel.fanout_subscribers("news") == []


def test_loss_and_return_of_the_broker_are_told_once(connect, redis_client, noticed):
    connection, other = connect(), connect()
    inbox = Inbox(connection.channel(), news())
    cut(redis_client)
    broken(inbox, connection)
    with pytest.raises(other.connection_errors):
        other.default_channel.queue_purge("q")
    assert [type(one) for one in noticed] == [BrokerLost]
    reconnect(connection)
    wait_until(lambda: [type(one) for one in noticed][:2] == [BrokerLost, BrokerBack])


class Listener(threading.Thread):
    """A subscriber that reconnects until it has the last of `total` broadcasts."""

    def __init__(self, connection, queue, total):
        super().__init__(daemon=True)
        self.connection, self.queue, self.total = connection, queue, total
        self.inbox = Inbox(connection.channel(), queue)
        self.received: list[tuple[int, bool]] = []

    def run(self):
        while not self.received or self.received[-1][0] != self.total - 1:
            try:
                self.inbox.pump(1)
            except self.connection.connection_errors:
                self.consume_again()
            self.received += flags(self.inbox)
            self.inbox.messages.clear()

    def consume_again(self):
        while True:
            try:
                reconnect(self.connection)
                self.inbox.consumer.revive(self.connection.channel())
                self.inbox.consumer.consume()
            except self.connection.connection_errors:
                continue
            return


def test_everything_arrives_in_order_however_often_the_connections_are_cut(connect, server):
    """Short form of Shows 1; the long one is in tests/chaos."""
    total, every = 2000, 200
    listeners = [Listener(connect(client_name=f"subscriber-{number}"), news(f"q{number}"), total) for number in range(3)]
    for listener in listeners:
        listener.start()
    publisher = connect().channel()
    with server.client() as client:
        for number in range(total):
            send(publisher, number)
            if number % every == every // 2:
                victims = [row["id"] for row in client.client_list() if row["name"].startswith("subscriber-")]
                for victim in random.sample(victims, len(victims) // 2):
                    client.client_kill_filter(_id=victim)
    for listener in listeners:
        listener.join(60)
        assert not listener.is_alive()
        assert [body for body, redelivered in listener.received if not redelivered] == list(range(total))
