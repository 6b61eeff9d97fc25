"""Lost connections and servers: what breaks is opened again, and no message is lost."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import PreconditionFailed, ShardUnreachable
from celery_redis_plus.shards import shard_state
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.servers import new_server
from tests.support.waiting import wait_until

QUEUES = [named(shard) for shard in range(SHARDS)]


def kill_all(redis_client):
    """Close all connections of this package's on the server."""
    for one in redis_client.client_list():
        if one["name"].startswith("celery-redis-plus"):
            redis_client.client_kill_filter(_id=one["id"])


def test_a_publisher_whose_connections_were_closed_notices_nothing(connect_shards, redis_client):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    exchange = kombu.Exchange("orders", "topic")
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "#")(channel).declare()
    producer = kombu.Producer(channel)
    for queue in QUEUES:
        publish(channel, queue, "before")
    kill_all(redis_client)
    for queue in QUEUES:
        producer.publish("after", routing_key=queue, retry=False)
    kill_all(redis_client)
    producer.publish("to all", exchange="orders", routing_key="x", retry=False)
    kill_all(redis_client)
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [3, 3, 3]


def test_a_publisher_to_an_exchange_of_others_notices_no_closed_connection(connect_shards, redis_client):
    exchange, channel = kombu.Exchange("orders", "topic"), connect_shards().channel()
    kombu.Queue(QUEUES[1], exchange, "#")(channel).declare()
    other = connect_shards().channel()
    for close in (lambda: None, lambda: kill_all(redis_client)):
        close()
        # It has not declared the exchange: its record is asked for, and whether other shards have more queues for it.
        kombu.Producer(other).publish("order", exchange="orders", routing_key="x", retry=False)
    other.close()
    another = connect_shards().channel()
    for shard in range(SHARDS):
        another.part(shard, wait_s=5)
    kill_all(redis_client)
    kombu.Producer(another).publish("order", exchange="orders", routing_key="x", retry=False)
    assert channel.queue_sizes(QUEUES[1]).ready == 3


def test_a_consumer_whose_connections_were_closed_goes_on(connect_shards, redis_client):
    connection, publisher = connect_shards(), connect_shards().channel()
    news = kombu.Exchange("news", "fanout")
    heard = kombu.Queue("heard", news, auto_delete=True)
    inbox = Inbox(connection.channel(), *QUEUES, heard)
    for round_ in range(3):
        for shard in range(SHARDS):
            # One at a time: without any shard left the consumer hears of it.
            connection.transport.open(shard).session.abandon()
            wait_until(lambda: not inbox.pump(0.05) and len(connection.transport.brokers) == SHARDS, 10)
        for queue in QUEUES:
            publish(publisher, queue, round_)
        kombu.Producer(publisher).publish("news", exchange=news)
        inbox.drain((round_ + 1) * (SHARDS + 1), timeout_s=10)
    assert sorted(map(str, inbox.rest())) == sorted(["0", "1", "2"] * SHARDS + ["news"] * 3)
    for queue in QUEUES:
        wait_until(lambda queue=queue: sum(publisher.queue_sizes(queue)) == 0)


def test_what_a_lost_shard_had_delivered_comes_again_and_its_acks_count(connect_shards):
    connection, publisher = connect_shards(), connect_shards().channel()
    inbox = Inbox(connection.channel(), *QUEUES, ack=False)
    for queue in QUEUES:
        publish(publisher, queue, queue)
    inbox.drain(SHARDS)
    mine = next(message for message in inbox.messages if message.payload == QUEUES[1])
    connection.transport.open(1).session.abandon()
    mine.ack()
    for message in inbox.messages:
        if message is not mine:
            message.ack()
    wait_until(lambda: not inbox.pump(0.1) and all(sum(publisher.queue_sizes(queue)) == 0 for queue in QUEUES), 20)
    assert len(inbox.messages) == SHARDS


def reconnect(connection, inbox, shard):
    connection.transport.open(shard).session.abandon()
    wait_until(lambda: not inbox.pump(0.05) and len(connection.transport.brokers) == SHARDS, 10)


def test_a_message_that_comes_again_is_not_settled_with_those_before_it(connect_shards):
    options = {"visibility_timeout": 3, "connection_lost_grace": 1}
    connection, publisher = connect_shards(**options), connect_shards(**options).channel()
    inbox = Inbox(connection.channel(), *QUEUES, ack=False)
    publish(publisher, QUEUES[1], "again")
    inbox.drain(1)
    publish(publisher, QUEUES[0], "between")
    inbox.drain(2)
    connection.transport.open(1).session.abandon()
    assert inbox.drain(3) == ["again", "between", "again"]
    inbox.messages[1].ack(multiple=True)
    wait_until(lambda: publisher.queue_sizes(QUEUES[0]).unacked == 0)
    assert publisher.queue_sizes(QUEUES[1]).unacked == 1


def test_a_consumer_that_cannot_go_on_keeps_no_other_one_from_its_shard(connect_shards, caplog):
    connection, publisher = connect_shards(), connect_shards().channel()
    channel, gone, other, cancelled = connection.channel(), named(1), named(1, "z"), []
    declare(channel, gone, named(1, "loud"))
    channel.basic_consume(gone, callback=None, consumer_tag="told", on_cancel=cancelled.append)
    channel.basic_consume(named(1, "loud"), callback=None, consumer_tag="logged")
    inbox = Inbox(channel, other)
    connection.transport.open(1).session.abandon()
    for queue in (gone, named(1, "loud")):
        publisher.queue_delete(queue)
        declare(publisher, queue, arguments={"x-max-priority": 5})
    wait_until(lambda: not inbox.pump(0.05) and len(connection.transport.brokers) == SHARDS, 10)
    publish(publisher, other, "goes on")
    assert inbox.drain(1, timeout_s=5) == ["goes on"]
    assert cancelled == ["told"]
    assert "consumer logged of queue" in caplog.text


def test_a_declaration_that_was_refused_is_not_made_again(connect_shards):
    connection, publisher = connect_shards(), connect_shards().channel()
    inbox, channel = Inbox(connection.channel(), *QUEUES), connection.channel()
    with pytest.raises(PreconditionFailed):
        declare(channel, QUEUES[1], arguments={"x-max-priority": 5})
    reconnect(connection, inbox, 1)
    publish(publisher, QUEUES[1], "goes on")
    assert inbox.drain(1, timeout_s=5) == ["goes on"]


def test_the_loss_of_all_shards_is_told_and_the_next_connection_works(connect, tmp_path):
    with new_server() as server:
        connection = connect(server.url(), shards=SHARDS)
        inbox = Inbox(connection.channel(), *QUEUES)
        publish(connect(server.url(), shards=SHARDS).channel(), QUEUES[0], "before")
        inbox.drain(1)
        server.kill()
        with pytest.raises(connection.connection_errors):
            wait_until(lambda: inbox.pump(0.1) and False, 10)
        started = machine_time()
        with pytest.raises(ShardUnreachable):
            publish(connection.channel(), QUEUES[1], "lost", retry=False)
        assert machine_time() - started < 7
        server.start()
        other = connect(server.url(), shards=SHARDS)
        publish(other.channel(), QUEUES[1], "after")
        assert Inbox(other.channel(), *QUEUES).drain(1) == ["after"]
        for one in (connection, other):
            one.release()


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_outlives_a_restart_of_the_only_server(celery_app, celery_worker, notes, pool):
    config = {"broker_transport_options": {"shards": SHARDS}}
    with new_server(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        worker = celery_worker("configured", server.url(), pool=pool, config=config, queues=QUEUES)
        app = celery_app("configured", server.url(), **config)
        for number in range(30):
            app.send_task("c.note", ["restart", str(number), 0.05], queue=QUEUES[number % SHARDS])
        wait_until(lambda: len(notes.done("restart")) > 5, 20, worker.tail)
        server.kill()
        server.start()
        for number in range(30, 60):
            app.send_task("c.note", ["restart", str(number)], queue=QUEUES[number % SHARDS])
        wait_until(lambda: len(set(notes.done("restart"))) == 60, 40, worker.tail)
        worker.stop()


def test_a_subscriber_that_began_while_a_shard_was_down_hears_what_is_published_when_it_is_back(connect_shards, monkeypatch):
    news = kombu.Exchange(named(1, "news"), "fanout")
    news(connect_shards().channel()).declare()
    shard_state.forget()
    with monkeypatch.context() as down:
        down.setattr(Connector, "open", refuse_shard(1))
        inbox = Inbox(connect_shards().channel(), kombu.Queue(named(0, "hears"), news, exclusive=True))
    shard_state.forget()
    # The subscriber, which serves no loop now, has not noticed that the shard is back.
    publisher = connect_shards().channel()
    for number in range(2):
        kombu.Producer(publisher).publish(number, exchange=news, retry=False)
    assert inbox.drain(2, timeout_s=5) == [0, 1]
    wait_until(lambda: not inbox.pump(0.05) and len(publisher.part(1).fanout_subscribers(news.name)) == 1, 10)
    kombu.Producer(publisher).publish(2, exchange=news, retry=False)
    assert inbox.drain(3, timeout_s=5) == [0, 1, 2]
    assert publisher.part(1).fanout_counters(news.name)["count"] == 1
