"""A connection that is closed because it broke."""

import pytest
from kombu import Connection, Producer

from celery_redis_plus.maintenance.process_services import set_keeper
from celery_redis_plus.maintenance.service import MaintenanceService
from celery_redis_plus.transport.transport import CLOSE_FLUSH_S
from tests.support.active_tasks import KnownWorker
from tests.support.inbox import Inbox, publish
from tests.support.machine_time import machine_time
from tests.support.services import end_services


def close_a_broken_connection(server, monkeypatch, *, ends):
    """Return how often the close waited for what is not settled."""
    waits = []
    monkeypatch.setattr(MaintenanceService, "flush", lambda self, timeout_s: waits.append(timeout_s) or True)
    try:
        with Connection(server.url()) as connection:
            set_keeper(KnownWorker(ends=ends))
            channel = connection.channel()
            inbox = Inbox(channel, "q", ack=False)
            publish(channel, "q", "m")
            inbox.drain(1)
            server.kill()
            with pytest.raises(connection.connection_errors):
                inbox.drain(2)
            connection.collect()
    finally:
        set_keeper(None)
        server.start()
        end_services()
    return waits


def test_a_worker_that_goes_on_does_not_wait_for_a_server_that_is_away(own_server, monkeypatch):
    """Its loop would stand still for 5 s, and with it the results of its pool."""
    assert close_a_broken_connection(own_server, monkeypatch, ends=False) == []


@pytest.mark.parametrize("ends", [False, True])
def test_a_worker_that_goes_on_does_not_wait_when_it_changes_to_the_next_server_either(own_server, monkeypatch, ends):
    """The new connection never broke; what waits is what the old one left."""
    waits = []
    monkeypatch.setattr(MaintenanceService, "flush", lambda self, timeout_s: waits.append(timeout_s) or True)
    try:
        with Connection(own_server.url()) as connection:
            set_keeper(KnownWorker(ends=ends))
            unacked_messages = connection.default_channel.session.service.unacked_messages
            own_server.kill()
            unacked_messages.abandon("gone", {"q"}, {})
            connection.maybe_switch_next()
            connection.close()
    finally:
        set_keeper(None)
        own_server.start()
        end_services()
    assert len(waits) == ends


def test_a_worker_that_ends_does(own_server, monkeypatch):
    assert len(close_a_broken_connection(own_server, monkeypatch, ends=True)) == 1


def test_a_publish_on_a_channel_that_went_with_its_connection_is_retried_on_a_new_one(own_server):
    """Its error is a connection's: a channel's would be repeated on the same channel, for ever."""
    with Connection(own_server.url()) as connection:
        producer = Producer(connection)
        assert producer.channel.queue_declare("q", durable=True).message_count == 0
        connection.collect()
        with pytest.raises(connection.recoverable_connection_errors):
            producer.publish("m", routing_key="q", retry=False)
        producer.publish("m", routing_key="q", retry=True, retry_policy={"max_retries": 3})
        assert connection.default_channel.queue_sizes("q").ready == 1
    end_services()


def test_the_closes_of_a_worker_that_ends_share_one_wait(own_server):
    """Celery closes after the loss, and again at the end; a supervisor kills what takes too long."""
    try:
        set_keeper(KnownWorker(ends=True))
        connections = [Connection(own_server.url()) for _ in range(3)]
        inboxes = [Inbox(connection.channel(), f"q{number}", ack=False) for number, connection in enumerate(connections)]
        for number, inbox in enumerate(inboxes):
            publish(inbox.channel, f"q{number}", "m")
            inbox.drain(1)
        own_server.kill()
        began = machine_time()
        for connection, inbox in zip(connections, inboxes, strict=True):
            with pytest.raises(connection.connection_errors):
                inbox.drain(2)
            connection.collect()
        assert machine_time() - began < 2 * CLOSE_FLUSH_S
    finally:
        set_keeper(None)
        own_server.start()
        end_services()
