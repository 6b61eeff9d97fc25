"""Queues, exchanges and prefixes of any name."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.errors import InvalidQueueName
from tests.support.inbox import Inbox, publish
from tests.support.invariants import violations

NAMES = [
    "{", "}", "{}", "}{", "a{b}c", "{tag}x", "}lead", "%lead", "%7Dlead", "a:b", "a::b:", "*", "?", "[a-z]", "a*b?c[d]", "\\",
    "line\nbreak",
    b"\xff".decode("utf-8", "surrogateescape"), "tab\t", "nul\x00", " ", "ż🥕", "a.b.#", "x" * 1024, "'\"", "-", "0",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_queue_may_be_called_so(channel, redis_client, name):
    neighbours = [name + "x", "x" + name]
    for number, queue in enumerate([name, *neighbours]):
        kombu.Queue(queue, durable=True)(channel).declare()
        publish(channel, queue, number)
        publish(channel, queue, "later", headers={"x-delay": 60_000})
    inbox = Inbox(channel, name, ack=False)
    assert inbox.drain(1) == [0]
    assert violations(redis_client) == []
    inbox.messages[0].requeue()
    assert inbox.drain(2) == [0, 0]
    inbox.messages[1].ack()
    assert channel.queue_purge(name) == 1
    inbox.cancel()
    channel.queue_delete(name)
    for number, queue in enumerate(neighbours, 1):
        assert channel.basic_get(queue, no_ack=True).payload == number


def test_a_queue_with_events_may_have_a_name_that_is_no_utf_8(connect):
    channel = connect(event_log=True).channel()
    queue = b"caf\xe9".decode("utf-8", "surrogateescape")
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, "x")
    assert channel.basic_get(queue, no_ack=True).payload == "x"


def test_names_that_could_be_taken_for_one_another_are_not(channel):
    names = ["}", "%7D", "%", "%25", "%257D", "a", "a}", "{a}", "a:", ":a"]
    for name in names:
        publish(channel, name, name)
    for name in names:
        assert channel.basic_get(name, no_ack=True).payload == name
        assert channel.basic_get(name) is None


@pytest.mark.parametrize("exchange", ["{e}", "a:b", "*", "line\nbreak", "}"])
@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_an_exchange_may_be_called_so(channel, exchange, kind):
    queue = kombu.Queue("q", kombu.Exchange(exchange, kind, durable=True), routing_key="k", durable=True)
    inbox = Inbox(channel, queue)
    kombu.Producer(channel, queue.exchange, routing_key="k").publish("x")
    assert inbox.drain(1) == ["x"]


@pytest.mark.parametrize("prefix", ["app:", "{app}", "*", "a\nb", "ż"])
def test_prefixes_keep_applications_apart_in_one_database(connect, redis_client, prefix):
    mine, other = connect(global_keyprefix=prefix).channel(), connect().channel()
    queue = kombu.Queue("q", kombu.Exchange("e", "fanout", durable=True), durable=True)
    inbox, others = Inbox(mine, queue, "work"), Inbox(other, queue, "work")
    publish(mine, "work", "mine")
    kombu.Producer(mine, queue.exchange).publish("to all of mine")
    assert sorted(inbox.drain(2)) == ["mine", "to all of mine"]
    assert others.rest() == []
    others.cancel()
    assert violations(redis_client, prefix) == []


@pytest.mark.parametrize("name", ["x" * 4097, "\ud800", 7])
def test_a_name_that_cannot_be_is_refused_and_leaves_nothing(channel, redis_client, name):
    with pytest.raises(InvalidQueueName):
        channel.queue_declare(name)
    with pytest.raises(InvalidQueueName):
        channel.basic_publish(channel.prepare_message("x"), routing_key=name)
    assert redis_client.keys("*") == []


def test_an_empty_routing_key_on_the_default_exchange_is_refused(channel):
    with pytest.raises(InvalidQueueName, match="empty"):
        channel.basic_publish(channel.prepare_message("x"), routing_key="")
