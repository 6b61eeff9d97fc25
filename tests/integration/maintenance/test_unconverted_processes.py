"""A process that was forgotten in a conversion publishes into kombu's own lists: the consumers say so."""

import logging

import kombu
import pytest

from celery_redis_plus import clock
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance import unconverted_processes
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

pytestmark = pytest.mark.not_on("cluster", "cluster-tls", reason="kombu's own transport, whose lists these are, knows no cluster")


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
    wait_until(channel.session.service.consumed.all)

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


class CountingCommands:
    """A connection on which each command takes a while: another one's clock goes on."""

    def __init__(self, session, monkeypatch):
        self._commands, self._now = session.commands, clock.now_s()
        self.sent = []
        monkeypatch.setattr(unconverted_processes.clock, "now_s", lambda: self._now)

    def command(self, *arguments):
        self.sent.append(arguments[0])
        self._now += 0.04
        return self._commands.command(*arguments)


@pytest.fixture
def slow_check(channel, monkeypatch):
    """The check of a process that consumes 20 queues, of a server that takes 40 ms for each command."""
    consumed = ConsumedQueues()
    for number in range(20):
        consumed.add(f"q{number}", "session", None)
    commands = CountingCommands(channel.session, monkeypatch)
    return commands, unconverted_processes.UnconvertedProcesses(commands, Keys(), consumed)


def test_all_queues_are_looked_at_in_one_command(slow_check):
    commands, check = slow_check
    check.run()
    assert commands.sent == ["EXISTS"]
    assert check.next_run_at > 0


def test_queues_with_messages_are_looked_at_for_a_slice_at_a_time(slow_check, forgotten, caplog):
    commands, check = slow_check
    forgotten("q19")
    runs = 0
    while check.next_run_at == 0:
        before = len(commands.sent)
        check.run()
        # A slice, and the queue with which it ends: heartbeats wait for no more.
        assert len(commands.sent) - before <= 1 + 2 * 4 + 1
        runs += 1
    assert runs > 5
    assert len(warnings(caplog)) == 1


def test_keys_of_another_type_with_the_queues_name_say_nothing(consume, redis_client, caplog):
    redis_client.set("word", "x")
    redis_client.zadd("word\x06\x163", {"x": 1})
    with caplog.at_level(logging.DEBUG):
        channel = consume("word")
        task = channel.session.service.runner.tasks[-1]
        wait_until(lambda: task.next_run_at > 0)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
