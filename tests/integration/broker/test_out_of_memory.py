"""A full server refuses new messages, clearly, and goes on with what frees memory."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.registry import Consumer
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
from celery_redis_plus.broker.exchanges.routing import Binding
from celery_redis_plus.errors import ServerOutOfMemory
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import LARGE_BODY
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time


@pytest.fixture
def full(start_server, brokers):
    """A broker whose server takes nothing more; twenty messages are in `q`."""
    server = start_server({"maxmemory": "0"})
    with server.client() as client:
        broker = brokers(client)
        broker.declare("q")
        broker.publish("q", *(b"%d" % number for number in range(20)))
        broker.claim("q", credit=1)
        client.config_set("maxmemory", "1mb")
        client.config_set("maxmemory-policy", "noeviction")
        yield broker


@pytest.mark.parametrize("size", [10, LARGE_BODY + 1])
def test_a_publish_is_refused_with_an_error_that_names_the_cause_and_can_be_repeated(full, size):
    for _ in range(2):
        with pytest.raises(ServerOutOfMemory, match="maxmemory"):
            full.publish("q", b"x" * size)
    full.check()
    full.client.config_set("maxmemory", "0")
    full.publish("q", b"x" * size)
    assert full.queues.sizes("q").ready == 20


def test_everything_else_works(full):
    messages = full.claim("q", credit=10)
    assert len(messages) == 10
    keys = full.keys.queue("q")
    places = [keys.index, keys.message, keys.meta]
    assert full.commands.call(script("extend_leases"), places, 30_000, 1, messages[0].tag, messages[0].claim) == []
    full.settle(Settlement.ACK, *messages[:4])
    full.settle(Settlement.REQUEUE, *messages[4:6])
    full.settle(Settlement.REJECT, *messages[6:8])
    full.settle(Settlement.RELEASE_UNSEEN, *messages[8:])
    full.commands.call(script("sweep"), keys.state_keys, "s", 6000, 4000, 500, 1, 1000, 12_000, -1, 10, 60_000)
    assert full.commands.command("HGET", keys.meta, "sweeper") == b"s"
    full.queues.declare("new", QueueArguments.parse("new", durable=True))
    full.consumers.join(Consumer("me.1", "q", "tag"))
    Bindings(full.commands, full.keys).declare("e", ExchangeRecord("topic"))
    Bindings(full.commands, full.keys).bind("e", Binding("new", "k"))
    full.check(swept=True)
    assert full.queues.purge("q") == 13
    assert full.queues.delete("q") == 0


def test_a_worker_may_declare_its_queues_and_they_are_swept_and_logged(full):
    """A worker that starts is what frees memory."""
    archived = QueueArguments.parse("archived", durable=True, arguments={"x-message-ttl": 60_000, "x-event-log": True})
    full.queues.declare("archived", archived)
    assert full.queues.registry.always_swept() == ["archived"]
    assert full.client.exists(full.keys.sweep_wakeup)
    assert full.client.smembers(full.keys.event_logs) == {b"archived"}


def test_a_posted_ack_is_executed(full):
    (message,) = full.unacked_messages.add(full.claim("q", credit=1), "session", clock.now_s())
    full.acknowledger.post(full.unacked_messages.begin_settling(message.tag, Settlement.ACK), Settlement.ACK)
    full.commands.command("PING")
    assert len(full.unacked_messages) == 0


def test_a_consumer_is_woken_served_and_closed_at_once(start_server):
    """Wakeups are written too: a full server must neither end a consumer nor let it sleep."""
    server = start_server()
    with kombu.Connection(server.url()) as connection, server.client() as client:
        declare(connection.default_channel, "q")
        publish(connection.default_channel, "q", *range(5))
        client.config_set("maxmemory", "1mb")
        inbox = Inbox(connection.channel(), "q", "side", prefetch=1, ack=False)
        other = Inbox(connection.channel(), "r")
        for number in range(5):
            assert inbox.drain(number + 1)[-1] == number
            assert other.rest(0.02) == []
            (inbox.messages[-1].reject if number else inbox.messages[-1].ack)()
        # A wakeup that this consumer cannot use is passed on.
        inbox.consumer.qos(prefetch_count=2)
        assert inbox.rest(0.05) == list(range(5))
        start = machine_time()
        inbox.cancel()
    assert machine_time() - start < 2
