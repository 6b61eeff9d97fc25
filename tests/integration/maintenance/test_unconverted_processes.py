"""A process that was forgotten in a conversion publishes into kombu's own lists: the consumers say so."""

import logging

import kombu
import pytest

from celery_redis_plus.maintenance import unconverted_processes
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


@pytest.fixture
def forgotten(server, broker_url):
    """Publish over kombu's Redis transport."""
    with kombu.Connection(server.url(scheme="redis")) as connection:

        def publish(queue, priority=0):
            connection.default_channel.queue_declare(queue)
            kombu.Producer(connection.default_channel).publish("x", routing_key=queue, priority=priority)

        yield publish


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "kombu's own Redis transport" in record.getMessage()]


@pytest.fixture
def consume(broker_url):
    connections = []

    def start(*queues):
        connections.append(kombu.Connection(broker_url))
        channel = connections[-1].channel()
        for queue in queues:
            channel.queue_declare(queue, durable=True)
            Inbox(channel, queue)
        return channel

    yield start
    for connection in connections:
        connection.release()


def test_a_consumer_names_kombus_messages_of_its_queue_once(consume, forgotten, caplog):
    for priority in (0, 0, 3, 9):
        forgotten("shop", priority)
    forgotten("of another app")
    consume("shop", "quiet")
    wait_until(lambda: warnings(caplog))
    channel = consume("shop")
    wait_until(channel.session.service.watched.all)

    (message,) = warnings(caplog)
    assert "queue 'shop': 4 message(s) lie in list 'shop', list 'shop\\x06\\x163', list 'shop\\x06\\x169'" in message
    assert "redisplus://" in message
    assert "configure_app" in message


def test_lists_that_fill_later_are_noticed(consume, forgotten, caplog, monkeypatch):
    monkeypatch.setattr(unconverted_processes, "CONVERSION_CHECK_S", 0.1)
    consume("late")
    forgotten("late")
    wait_until(lambda: warnings(caplog))

    assert "queue 'late': 1 message(s)" in warnings(caplog)[0]


def test_every_queue_is_looked_at_however_many_there_are(consume, forgotten, caplog, monkeypatch):
    monkeypatch.setattr(unconverted_processes, "QUEUES_A_CHECK", 2)
    forgotten("q6")
    consume(*(f"q{number}" for number in range(7)))
    wait_until(lambda: warnings(caplog))

    assert len(warnings(caplog)) == 1


def test_keys_of_another_type_with_the_queues_name_say_nothing(consume, redis_client, caplog):
    redis_client.set("word", "x")
    redis_client.zadd("word\x06\x163", {"x": 1})
    with caplog.at_level(logging.DEBUG):
        channel = consume("word")
        task = channel.session.service._runner._tasks[-1]  # noqa: SLF001 - nothing else shows that it has looked
        wait_until(lambda: task.next_run_at > 0)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
