"""A connection that is cut inside an operation of a channel is closed as broken: nothing is lost, no running task goes back."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import kombu
import pytest

from celery_redis_plus.errors import PublishTimedOut
from celery_redis_plus.maintenance.process_services import set_keeper
from celery_redis_plus.transport.channel import Channel
from tests.integration.fanout.conftest import news, reconnect, send
from tests.integration.fanout.socket_cuts import SocketCuts
from tests.support.active_tasks import KnownWorker
from tests.support.inbox import Inbox, declare, publish
from tests.support.services import end_services

pytestmark = pytest.mark.same_everywhere

#: More than any operation here has.
MOST_WRITES = 60


def publish_to_full_queue(channel):
    with suppress(PublishTimedOut):
        publish(channel, "full", "m")


def drain_events(channel):
    with suppress(TimeoutError):
        channel.drain_events(timeout=0.01)


#: Each operation that sends something over the channel's connections, by its name and, behind a dot, its case.
OPERATIONS = {
    "basic_publish": lambda channel: publish(channel, "other", "m"),
    "basic_publish.fanout": lambda channel: kombu.Producer(channel).publish("m", exchange="rest"),
    "basic_publish.full": publish_to_full_queue,
    "basic_consume": lambda channel: channel.basic_consume("other", callback=lambda message: None),
    "basic_consume.browse": lambda channel: channel.basic_consume("other", arguments={"x-browse": True}),
    "basic_get": lambda channel: channel.basic_get("other"),
    "basic_qos": lambda channel: channel.basic_qos(0, 5),
    "flow": lambda channel: (channel.flow(False), channel.flow(True)),
    "exchange_declare": lambda channel: channel.exchange_declare("news", "fanout", durable=True),
    "exchange_declare.passive": lambda channel: channel.exchange_declare("news", passive=True),
    "exchange_delete": lambda channel: channel.exchange_delete("rest"),
    "list_bindings": lambda channel: list(channel.list_bindings()),
    "get_exchanges": lambda channel: channel.get_exchanges(),
    "get_table": lambda channel: channel.get_table("news"),
    "fanout_subscribers": lambda channel: channel.fanout_subscribers("news"),
    "fanout_counters": lambda channel: channel.fanout_counters("news"),
    "fanout_deaths": lambda channel: channel.fanout_deaths("news"),
    "queue_declare": lambda channel: channel.queue_declare("q", durable=True),
    "queue_declare.new": lambda channel: channel.queue_declare("new", durable=True),
    "queue_declare.passive": lambda channel: channel.queue_declare("q", passive=True),
    "queue_delete": lambda channel: channel.queue_delete("other"),
    "queue_purge": lambda channel: channel.queue_purge("other"),
    "queue_sizes": lambda channel: channel.queue_sizes("q"),
    "queue_counters": lambda channel: channel.queue_counters("q"),
    "queue_bind": lambda channel: channel.queue_bind("q", "news"),
    "queue_bind.second": lambda channel: channel.queue_bind("q", "rest"),
    "queue_unbind": lambda channel: channel.queue_unbind("q", "rest"),
    "drain_events": drain_events,
}


@pytest.fixture
def worker():
    set_keeper(KnownWorker(active=True))
    yield
    set_keeper(None)
    end_services()


@pytest.fixture(params=["before", "after"])
def cuts(request, monkeypatch):
    return SocketCuts(monkeypatch, request.param)


def test_each_operation_of_a_channel_is_cut_here():
    methods = {name for name, method in vars(Channel).items() if hasattr(method, "__wrapped__")}
    # It gives running tasks back on purpose.
    methods.remove("basic_recover")
    assert methods <= {name.partition(".")[0] for name in OPERATIONS}


def fails(cuts, number, connection, operation):
    """Return whether a cut at a write of an operation has ended that in an error, after which kombu's users reconnect."""
    try:
        with cuts.at(number):
            operation()
    except connection.connection_errors:
        return True
    return False


def come_back(connection, returned):
    reconnect(connection)
    returned.append(Inbox(connection.channel(), news()))
    returned[-1].drain(1)


def received_until(last, connection, inbox):
    """Return what a subscriber receives up to `last`, each once, on a new connection where its own is cut."""
    try:
        received = drain_until(last, inbox)
    except connection.connection_errors:
        assert inbox.channel.session.broken
        reconnect(connection)
        received = inbox.bodies + drain_until(last, Inbox(connection.channel(), news()))
    return list(dict.fromkeys(received))


def drain_until(last, inbox):
    while last not in inbox.bodies:
        inbox.drain(len(inbox.messages) + 1, 5)
    return inbox.bodies


@pytest.mark.sample(28)
@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_cut_at_any_write_of_an_operation_loses_no_broadcast_and_requeues_no_running_task(connect, cuts, operation):
    others = connect().channel()
    declare(others, "work")
    declare(others, "full", arguments={"x-max-length": 1, "x-overflow": "block"})
    publish(others, "full", "m")
    for number in range(1, MOST_WRITES):
        declare(others, "other")
        others.exchange_declare("rest", "fanout")
        connection = connect(publish_timeout=0.05)
        channel = connection.channel()
        inbox = Inbox(channel, news())
        send(others, "first")
        inbox.drain(1)
        publish(others, "work", "running")
        running = channel.basic_get("work")
        failed = fails(cuts, number, connection, partial(OPERATIONS[operation], channel))
        send(others, "last")
        if failed:
            reconnect(connection)
            inbox = Inbox(connection.channel(), news())
        assert received_until("last", connection, inbox)[-1:] == ["last"]
        assert others.queue_sizes("work").ready == 0
        running.ack()
        connection.release()
        if cuts.writes < number:
            return
    pytest.fail(f"{operation} has more than {MOST_WRITES} writes")


def test_a_subscriber_that_is_cut_at_any_write_of_its_way_back_loses_no_broadcast(connect, redis_client, cuts):
    """Also where the connections that it waits over are opened: the others of its session are whole then."""
    publisher = connect().channel()
    for number in range(1, MOST_WRITES):
        connection = connect()
        inbox = Inbox(connection.channel(), news())
        send(publisher, 1)
        inbox.drain(1)
        redis_client.client_kill_filter(_id=connection.transport.session.commands.client_id)
        with suppress(*connection.connection_errors):
            inbox.drain(2)
        send(publisher, 2)
        returned = []
        failed = fails(cuts, number, connection, partial(come_back, connection, returned))
        send(publisher, 3)
        if failed:
            reconnect(connection)
            returned = [Inbox(connection.channel(), news())]
        assert received_until(3, connection, returned[-1]) == [2, 3]
        connection.release()
        if cuts.writes < number:
            return
    pytest.fail(f"a way back has more than {MOST_WRITES} writes")
