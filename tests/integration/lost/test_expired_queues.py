"""A transient queue lives as long as its consumers count; one that has expired all the same is declared again."""

from __future__ import annotations

import signal
import time

import pytest
from kombu import Exchange, Queue

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from tests.support.inbox import publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

#: Life of the queue while unused; seconds within which a death is noticed.
EXPIRES_MS, NOTICED_S = 1000, 7.0


def test_a_consumer_that_was_frozen_finds_its_queue_with_what_came_meanwhile(crew, client, connect, own_server):
    crew.start("frozen", arguments={"x-expires": EXPIRES_MS})
    crew.wait()
    wait_until(lambda: client.pttl("meta:{q}") > 60_000)
    crew.signal("frozen", signal.SIGSTOP)
    publish(connect(own_server.url()).channel(), "q", "meanwhile")
    frozen_at = time.monotonic()
    wait_until(lambda: time.monotonic() > frozen_at + 3 * EXPIRES_MS / 1000 or not client.exists("meta:{q}"))
    crew.signal("frozen", signal.SIGCONT)
    wait_until(lambda: crew.count() == 1)


def test_the_queue_of_a_killed_consumer_goes_after_its_own_life(crew, client):
    crew.start("another", queue="other")
    crew.start("killed", arguments={"x-expires": EXPIRES_MS})
    crew.wait()
    wait_until(lambda: client.zcard("heartbeats:{presence}") == 2)
    crew.signal("killed", signal.SIGKILL)
    wait_until(lambda: not client.exists("meta:{q}"), NOTICED_S + EXPIRES_MS / 1000)


@pytest.mark.sample(1)
@pytest.mark.parametrize("cleared", [False, True])
def test_a_consumer_that_was_frozen_gets_messages_again(cleared, crew, client, connect, own_server, tmp_path):
    crew.start("frozen", arguments={"x-expires": EXPIRES_MS})
    crew.wait()
    channel = connect(own_server.url()).channel()
    crew.signal("frozen", signal.SIGSTOP)
    # The server's clock has stepped.
    client.pexpire("meta:{q}", 1)
    wait_until(lambda: not client.exists("meta:{q}"))
    if cleared:
        # As another process does within a minute.
        wait_until(lambda: channel.session.service.tasks.janitor.clear() or client.zscore("queues", "q") < 0)
    crew.signal("frozen", signal.SIGCONT)
    wait_until(lambda: client.exists("meta:{q}"))
    publish(channel, "q", "after")
    wait_until(lambda: crew.count() == 1)
    log = (tmp_path / "frozen.log").read_text()
    assert "has expired" in log
    assert "flushed or evicted" not in log


def test_it_is_bound_again(client, connect, own_server):
    connection = connect(own_server.url())
    queue = Queue("t", Exchange("x", "direct", durable=True), routing_key="k", expires=60)(connection.default_channel)
    queue.declare()
    got = []
    queue.consume(callback=lambda message: got.append(message.payload), no_ack=True)
    other = connect(own_server.url()).channel()
    session = other.session
    client.delete("meta:{t}", "consumers:{t}")
    # As another process does that clears it away.
    Bindings(session.commands, session.keys, DeclaredTopology(), session.fanout_keys).unbind_queues(["t"])
    connection.default_channel.session.service.tasks.topology_recovery.run_soon()
    connection.default_channel.session.service.wake()

    def comes():
        publish_to(other)
        try:
            connection.drain_events(timeout=0.2)
        except TimeoutError:
            return False
        return got

    wait_until(comes)


def publish_to(channel):
    message = channel.prepare_message("m", content_type="text/plain", content_encoding="utf-8")
    channel.basic_publish(message, exchange="x", routing_key="k")


def test_a_queue_that_was_deleted_stays_deleted(crew, client, connect, own_server):
    crew.start("consumer", arguments={"x-expires": EXPIRES_MS})
    crew.wait()
    connect(own_server.url()).channel().queue_delete("q")
    with pytest.raises(TimeoutError):
        wait_until(lambda: client.exists("meta:{q}"), 3 * EXPIRES_MS / 1000)
