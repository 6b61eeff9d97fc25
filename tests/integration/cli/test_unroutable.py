"""Messages that no queue took: replayed to where they were published to, and never left where nobody consumes."""

from __future__ import annotations

import json

import kombu
import pytest

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.cli.main import main
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare


@pytest.fixture
def run(broker_url, capsys):
    def call(*arguments):
        status = main([*arguments[:2], "--url", broker_url, *arguments[2:]])
        return status, capsys.readouterr()

    return call


@pytest.fixture
def lost(channel):
    """Publish two messages that no queue takes yet; returns their exchange."""
    exchange = kombu.Exchange("orders", "topic", durable=True)(channel)
    exchange.declare()
    for body, key in (("new", "order.new"), ("old", "order.old")):
        kombu.Producer(channel).publish(body, exchange="orders", routing_key=key)
    assert dead_letters_of(channel).count(UNDELIVERED) == 2
    return exchange


def test_all_are_routed_again_by_their_exchange_and_key(run, lost, channel):
    inbox = Inbox(channel, kombu.Queue("q", lost, routing_key="order.new", durable=True))
    status, printed = run("dead-letters", "replay", "--all", UNDELIVERED)
    assert (status, printed.out) == (1, f"1 dead letter(s) of queue {UNDELIVERED!r} are back to work\n")
    assert "still no queue takes messages to exchange 'orders' with routing key 'order.old'" in printed.err
    assert inbox.drain(1) == ["new"]
    assert channel.queue_sizes(UNDELIVERED).ready == 0
    assert [letter.body for letter in dead_letters_of(channel).page(UNDELIVERED)] == [b"old"]
    declare(channel, "other")
    assert run("dead-letters", "replay", "--all", UNDELIVERED, "--to", "other")[0] == 0
    assert channel.queue_sizes("other").ready == 1


def test_an_alternate_exchange_takes_what_its_exchange_routes_nowhere(run, channel):
    for name, arguments in (("orders", {"alternate-exchange": "rest"}), ("rest", None)):
        kombu.Exchange(name, "topic", durable=True, arguments=arguments)(channel).declare()
    kombu.Producer(channel).publish("new", exchange="orders", routing_key="order.new")
    assert dead_letters_of(channel).count(UNDELIVERED) == 1
    inbox = Inbox(channel, kombu.Queue("q", kombu.Exchange("rest", "topic", durable=True), routing_key="#", durable=True))
    assert run("dead-letters", "replay", "--all", UNDELIVERED)[0] == 0
    assert inbox.drain(1) == ["new"]


def test_none_goes_to_the_reserved_queue(run, lost, channel):
    status, printed = run("dead-letters", "replay", "--all", UNDELIVERED, "--to", UNDELIVERED)
    assert (status, dead_letters_of(channel).count(UNDELIVERED)) == (1, 2)
    assert "which has no consumer: name another queue" in printed.err


def test_a_broadcast_needs_a_queue_to_go_to(run, channel):
    kombu.Exchange("news", "fanout", durable=True)(channel).declare()
    kombu.Producer(channel).publish("x", exchange="news", routing_key="")
    status, printed = run("dead-letters", "replay", "--all", UNDELIVERED)
    assert status == 1
    assert "was broadcast over 'news': name the queue that shall get it (--to)" in printed.err


def test_check_finds_what_is_ready_there_and_makes_it_a_dead_letter(run, lost, channel, broker_url, capsys):
    kombu.Producer(channel).publish("stuck", exchange="", routing_key=UNDELIVERED)
    assert main(["check", "--url", broker_url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (found["rule"], found["owner"], found["repaired"]) == ("never-delivered", UNDELIVERED, False)
    assert main(["check", "--url", broker_url, "--repair"]) == 1
    assert main(["check", "--url", broker_url]) == 0
    assert dead_letters_of(channel).count(UNDELIVERED) == 3
