"""Queues that are declared with `exclusive=True` are their connection's alone, and go with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import ConsumerCancelled
from tests.support.inbox import declare_own
from tests.support.waiting import wait_until

USES = {
    "declare": lambda channel: channel.queue_declare("q"),
    "declare exclusively": lambda channel: channel.queue_declare("q", exclusive=True),
    "ask for": lambda channel: channel.queue_declare("q", passive=True),
    "consume": lambda channel: channel.basic_consume("q"),
    "get": lambda channel: channel.basic_get("q"),
    "purge": lambda channel: channel.queue_purge("q"),
    "delete": lambda channel: channel.queue_delete("q"),
    "bind": lambda channel: channel.queue_bind("q", "amq.direct", "k"),
    "unbind": lambda channel: channel.queue_unbind("q", "amq.direct", "k"),
}


@pytest.mark.parametrize("use", USES)
def test_another_connection_is_refused(use, connect, channel):
    channel.queue_declare("q", exclusive=True)
    with pytest.raises(ChannelError, match="locked queue 'q'") as caught:
        USES[use](connect().channel())
    assert caught.value.code == 405
    # Its own connection may, on any channel.
    USES[use](channel.connection.client.channel()) if use != "declare" else channel.queue_declare("q", exclusive=True)


def test_others_may_publish_to_it(connect, channel):
    channel.queue_declare("q", exclusive=True)
    other = connect().channel()
    other.basic_publish(other.prepare_message("for you"), "", "q")
    assert wait_until(lambda: channel.basic_get("q")).body == b"for you"


def test_it_goes_with_its_connection_and_its_bindings_too(connect, redis_client):
    connection, other = connect(), connect().channel()
    channel = connection.channel()
    channel.exchange_declare("e", "direct", durable=True)
    channel.queue_declare("q", exclusive=True)
    channel.queue_bind("q", "e", "k")
    channel.basic_publish(channel.prepare_message("x"), "", "q")
    connection.release()
    with pytest.raises(ChannelError) as caught:
        other.queue_declare("q", passive=True)
    assert caught.value.code == 404
    assert list(other.list_bindings()) == []
    assert redis_client.keys("message:{q}:*") == []


def test_a_queue_that_was_deleted_is_free(connect, channel):
    channel.queue_declare("q", exclusive=True)
    channel.queue_delete("q")
    other = connect()
    other.channel().queue_declare("q", exclusive=True)
    channel.connection.client.release()
    # The former owner's end does not touch it.
    assert other.default_channel.queue_declare("q", passive=True).queue == "q"


OWNER = """\
import sys, time, kombu, celery_redis_plus
channel = kombu.Connection(sys.argv[1], transport_options={"consumer_heartbeat_timeout": float(sys.argv[2])}).channel()
channel.queue_declare("q", exclusive=True)
channel.basic_publish(channel.prepare_message("old"), "", "q")
print("owned", flush=True)
time.sleep(60)
"""


@pytest.fixture
def owner(broker_url):
    started = []

    def start(timeout_s, url=broker_url):
        process = subprocess.Popen([sys.executable, "-c", OWNER, url, str(timeout_s)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "owned\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_queue_of_a_process_that_was_killed_is_gone_when_somebody_looks(owner, channel):
    process = owner(60)
    assert declare_own(channel) is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: declare_own(channel), 5).message_count == 0


def test_a_number_that_a_restarted_server_gives_to_another_connection_is_no_owner(owner, connect, start_server):
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    for _ in range(50):
        with server.client() as client:
            client.ping()
    process = owner(60, server.url())
    with server.client() as client:
        number = int(client.hget("meta:{q}", "owner").split()[1])
    process.kill()
    process.wait()
    server.kill()
    server.start()
    with ExitStack() as others:
        while others.enter_context(server.client(single_connection_client=True)).client_id() < number:
            pass
        assert declare_own(connect(server.url()).channel()).message_count == 0


def test_the_queue_of_a_process_that_stands_still_is_free_when_its_signs_of_life_end(owner, channel):
    process = owner(1)
    assert declare_own(channel) is None
    os.kill(process.pid, signal.SIGSTOP)
    assert wait_until(lambda: declare_own(channel), 10).message_count == 0


def test_an_idle_owner_keeps_its_queue(connect, redis_client):
    connection = connect(consumer_heartbeat_timeout=2)
    connection.channel().queue_declare("q", exclusive=True)
    for _ in range(2):
        wait_until(lambda: redis_client.pttl("meta:{q}") < 1600, 5)
        # A sign of life was given.
        wait_until(lambda: redis_client.pttl("meta:{q}") > 1600, 5)


def test_a_client_that_lost_its_connection_takes_its_queue_back(connect, redis_client):
    connection, other = connect(), connect().channel()
    connection.default_channel.queue_declare("q", exclusive=True)
    other.basic_publish(other.prepare_message("before"), "", "q")
    lost = [client["id"] for client in redis_client.client_list() if client["id"] != redis_client.client_id()]
    for client in lost:
        redis_client.client_kill_filter(_id=client)
    declare = connection.autoretry(lambda channel: channel.queue_declare("q", exclusive=True).message_count, max_retries=5)
    messages, _ = declare()
    assert messages == 1
    assert declare_own(connect().channel()) is None


def test_a_consumer_of_a_deleted_queue_gets_nothing_of_the_owner_that_declares_it_anew(connect, channel, caplog):
    other = connect()
    stolen, got = [], []
    channel.queue_declare("q", durable=True)
    others = other.channel()
    others.basic_consume("q", callback=stolen.append)
    with pytest.raises(TimeoutError):
        other.drain_events(timeout=0.2)
    channel.queue_delete("q")
    channel.queue_declare("q", exclusive=True)
    channel.basic_consume("q", callback=lambda message: (got.append(message.body), message.ack()))
    heard = []
    for number in range(20):
        channel.basic_publish(channel.prepare_message(str(number)), "", "q")
        with pytest.raises((TimeoutError, ConsumerCancelled)) as raised:
            other.drain_events(timeout=0.02)
        heard += [raised.value] if raised.type is ConsumerCancelled else []
        wait_until(lambda wanted=number + 1: channel.connection.client.drain_events(timeout=5) or len(got) == wanted)
    assert (stolen, got) == ([], [str(number).encode() for number in range(20)])
    assert len(heard) == 1
    assert "belongs to another connection" in caplog.text
    # Its end must not take the queue away, either.
    others.close()
    assert channel.queue_declare("q", passive=True)
