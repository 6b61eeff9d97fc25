"""A queue is deleted and declared again by another process: running consumers and publishers go by its new arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

#: Declares what it is told, a line of JSON each: URL, queue and declaration.
ELSEWHERE = """
import json, sys, kombu, celery_redis_plus
for line in sys.stdin:
    url, queue, declaration = json.loads(line)
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        channel.queue_delete(queue)
        channel.queue_declare(queue, **declaration)
    print("declared", flush=True)
"""
#: Sweeps, by which a consuming process notices, come every 0.5 s then.
QUICKLY = {"visibility_timeout": 3}


@pytest.fixture(scope="module")
def other_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture
def declare_elsewhere(broker_url: str, other_process: subprocess.Popen[str]) -> Callable[..., None]:
    """Have another process delete a queue, and declare it again."""

    def run(queue: str, **declaration: Any) -> None:
        print(json.dumps([broker_url, queue, {"durable": True, **declaration}]), file=other_process.stdin, flush=True)
        assert other_process.stdout.readline() == "declared\n"

    return run


def to(queue: str) -> dict[str, str]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def test_dead_letters_of_a_running_consumer_go_where_the_last_declaration_says(connect, declare_elsewhere):
    connection = connect(**QUICKLY)
    channel, looks = connection.channel(), connect().channel()
    declare(channel, "old", "new")
    declare(channel, "q", arguments=to("old"))
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), ack=False)
    publish(looks, "q", "first")
    inbox.drain(1)
    inbox.messages[-1].reject()
    wait_until(lambda: looks.queue_sizes("old").ready == 1)
    declare_elsewhere("q", arguments=to("new"))
    publish(looks, "q", "second")
    inbox.drain(2)
    inbox.messages[-1].reject()
    wait_until(lambda: looks.queue_sizes("new").ready + looks.queue_sizes("old").ready == 2)
    assert (looks.queue_sizes("old").ready, looks.queue_sizes("new").ready) == (1, 1)


def test_a_priority_is_capped_by_the_last_declaration(channel, declare_elsewhere):
    declare(channel, "q", arguments={"x-max-priority": 10})
    publish(channel, "q", "a", priority=9)
    declare_elsewhere("q", arguments={"x-max-priority": 2})
    publish(channel, "q", "nine", priority=9)
    publish(channel, "q", "two", priority=2)
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True))
    assert inbox.drain(2) == ["nine", "two"]
    assert [message.properties["priority"] for message in inbox.messages] == [2, 2]


def test_a_priority_is_capped_where_the_queue_was_declared_after_the_first_publish(channel, broker_url, redis_client):
    # Its first publisher made it, without knowing its arguments.
    publish(channel, "q", "a", priority=9)
    record = redis_client.hget("meta:{q}", "id")
    with kombu.Connection(broker_url) as other:
        declare(other.channel(), "q", arguments={"x-max-priority": 2})
    assert redis_client.hget("meta:{q}", "id") != record
    publish(channel, "q", "nine", priority=9)
    publish(channel, "q", "two", priority=2)
    assert Inbox(channel, kombu.Queue("q", no_declare=True)).drain(3) == ["a", "nine", "two"]


def test_a_cap_of_one_queue_does_not_reach_the_next_one_that_a_message_is_routed_to(channel):
    exchange = kombu.Exchange("x", "topic")
    for name, cap in (("capped", 2), ("free", None)):
        arguments = {} if cap is None else {"x-max-priority": cap}
        kombu.Queue(name, exchange, routing_key="#", queue_arguments=arguments)(channel).declare()
    kombu.Producer(channel).publish("m", exchange="x", routing_key="k", priority=9)
    found = {queue: channel.basic_get(queue).properties["priority"] for queue in ("capped", "free")}
    assert found == {"capped": 2, "free": 9}


def test_a_queue_whose_messages_expire_is_swept_after_it_was_declared_again(channel, declare_elsewhere, redis_client):
    declare(channel, "q")
    publish(channel, "q", "a", expiration=60)
    assert redis_client.sismember("always_swept", "q")
    declare_elsewhere("q")
    # A look for queues that are always swept came between the deletion and the new declaration.
    redis_client.srem("always_swept", "q")
    publish(channel, "q", "b", expiration=60)
    assert redis_client.sismember("always_swept", "q")
    assert channel.queue_sizes("q").ready == 1


def test_a_lasting_queue_that_was_transient_is_not_given_an_end(connect, declare_elsewhere, redis_client):
    channel = connect(**QUICKLY).channel()
    queue = kombu.Queue("q", queue_arguments={"x-expires": 1000})
    inbox = Inbox(channel, queue)
    declare_elsewhere("q")
    publish(channel, "q", "a")
    assert inbox.drain(1) == ["a"]
    service = channel.session.service
    wait_until(lambda: service.consumed.all()[0].ttl_ms is None)
    assert redis_client.pttl("meta:{q}") == -1
    channel.session.queues.touch("q")
    assert redis_client.pttl("meta:{q}") == -1


def test_a_transient_queue_that_was_lasting_is_kept_by_those_who_consume_it(connect, declare_elsewhere, redis_client):
    # Its life is renewed at every third of this time.
    channel = connect(**QUICKLY, consumer_heartbeat_timeout=3).channel()
    Inbox(channel, "q")
    declare_elsewhere("q", arguments={"x-expires": 3000})
    service = channel.session.service
    wait_until(lambda: service.consumed.all()[0].ttl_ms == 3000)
    left_ms = [redis_client.pttl("meta:{q}")]

    def renewed():
        left_ms.append(redis_client.pttl("meta:{q}"))
        return left_ms[-1] > left_ms[-2]

    wait_until(renewed)


def test_the_end_of_a_consumer_does_not_delete_a_queue_that_is_not_auto_delete_any_more(channel, declare_elsewhere):
    inbox = Inbox(channel, kombu.Queue("q", auto_delete=True))
    declare_elsewhere("q")
    publish(channel, "q", *range(3))
    inbox.drain(3)
    publish(channel, "q", "kept")
    inbox.consumer.cancel()
    assert channel.queue_sizes("q").ready == 1


def test_a_running_consumer_hears_of_messages_when_its_queue_has_got_a_single_active_consumer(connect, declare_elsewhere):
    options = {**QUICKLY, "consumer_heartbeat_timeout": 3, "polling_interval": 60}
    channel = connect(**options).channel()
    inbox = Inbox(channel, "q")
    inbox.pump(0.1)
    declare_elsewhere("q", arguments={"x-single-active-consumer": True})
    service = channel.session.service
    wait_until(lambda: not inbox.pump(0.05) and channel.queue_consumers.wakeups["q"] != channel.session.keys.queue("q").wakeup)
    assert service.consumer_lists.next_run_at
    publish(channel, "q", "a")
    assert inbox.drain(1, timeout_s=8) == ["a"]


def test_a_settlement_wakes_others_where_the_queue_has_got_a_limit_of_unacked_messages(connect, declare_elsewhere):
    channel = connect(**QUICKLY).channel()
    inbox = Inbox(channel, "q")
    declare_elsewhere("q", arguments={"x-max-unacked": 2})
    service = channel.session.service
    wait_until(lambda: not inbox.pump(0.05) and "q" in service.unacked_messages.limited)
    declare_elsewhere("q")
    wait_until(lambda: not inbox.pump(0.05) and "q" not in service.unacked_messages.limited)


def test_a_process_remembers_a_bounded_number_of_queues(channel, monkeypatch):
    records = channel.session.service.topology.records
    monkeypatch.setattr(records, "_most", 50)
    for number in range(120):
        declare(channel, f"reply{number}", auto_delete=True)
    publish(channel, "reply119", "a", expiration=60)
    assert 50 <= sum(records.get(f"reply{number}") is not None for number in range(120)) <= 2 * 50
    assert channel.basic_get("reply119").payload == "a"


def test_the_queues_that_a_process_uses_are_remembered_among_many_others(channel, monkeypatch):
    monkeypatch.setattr(channel.session.service.topology.records, "_most", 10)
    declare(channel, "q")
    for number in range(100):
        declare(channel, f"reply{number}", auto_delete=True)
        assert channel.session.queues.cached("q"), f"forgotten after {number} others"


def test_the_queues_that_a_process_consumes_are_remembered_however_many_they_are(channel, redis_client, monkeypatch):
    """Their sweeps ask for each of them: one that is forgotten is taken for declared again."""
    records, service = channel.session.service.topology.records, channel.session.service
    monkeypatch.setattr(records, "_most", 10)
    Inbox(channel, *(f"q{number}" for number in range(30)))
    wait_until(lambda: all(records.get(f"q{number}") for number in range(30)))
    version = service.consumed.version
    for number in range(30):
        publish(channel, f"q{number}", "later", headers={"x-delay": 60_000})
    meta = channel.session.keys.queue("q29").meta
    wait_until(lambda: int(redis_client.hget(meta, "swept") or 0) >= int(redis_client.hget(meta, "newest")))
    assert service.consumed.version == version
