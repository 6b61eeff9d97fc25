"""A process that is killed leaves nothing behind for longer than the grace."""

from __future__ import annotations

import json
import time

import pytest

from celery_redis_plus.broker.consumers.processes import PAGE
from tests.integration.lost.conftest import GRACE_S
from tests.support.apps import JOURNAL_DB
from tests.support.inbox import declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

REGISTRY = "processes:{presence}"
OPTIONS = {"connection_lost_grace": GRACE_S}


@pytest.fixture
def channel(connect, own_server):
    channel = connect(own_server.url(), event_log=True).channel()
    declare(channel, "q")
    return channel


def fail_counts(client):
    return [client.hget(key, "failed") for key in client.scan_iter("message:{q}:*")]


def test_what_a_killed_consumer_had_runs_elsewhere_after_the_grace(channel, crew, client):
    crew.start("dead", prefetch=20, ack=False, **OPTIONS)
    crew.wait()
    publish(channel, "q", *range(20))
    wait_until(lambda: crew.count() == 20)
    crew.start("heir", prefetch=20, ack=False, **OPTIONS)
    crew.wait()
    wait_until(lambda: client.hlen(REGISTRY) == 3)
    crew.kill("dead")
    killed_at, by_machine = time.monotonic(), machine_time()
    wait_until(lambda: crew.count() == 40)

    assert time.monotonic() - killed_at > GRACE_S * 0.9
    assert machine_time() - by_machine < GRACE_S + 2
    assert sorted(body for name, body, redelivered in crew.notes() if name == "heir" and redelivered) == sorted(
        map(str, range(20))
    )
    assert fail_counts(client) == ["1"] * 20
    log = (crew._logs / "heir.log").read_text()  # noqa: SLF001
    assert log.count("is lost") == 1
    assert "20 message(s) are put back ('q': 20), 1 consumer(s) are removed" in log
    events = [entry["v"].split("\t") for _, entry in client.xrange("events:{q}")]
    assert [event[5] for event in events if event[0] == "recovered"] == ["connection_lost"] * 20


def test_all_of_a_backlog_comes_back_and_its_consumer_leaves_the_list(channel, crew, client):
    """More than one page of what a lost process had."""
    count = 2 * PAGE + 50
    crew.start("dead", prefetch=2 * count, ack=False, **OPTIONS)
    crew.start("leader", queue="other", **OPTIONS)
    crew.wait()
    publish(channel, "q", *range(count))
    wait_until(lambda: client.zcard("messages_index:{q}") == count, 60)
    crew.kill("dead")
    wait_until(lambda: client.zcard("queue:{q}") == count, GRACE_S + 5)
    wait_until(lambda: client.zcard("consumers:{q}") == 0, 5)


def test_a_process_that_dies_at_its_first_delivery_leaves_nothing_for_longer_than_the_grace(channel, crew, client):
    """As by a task that ends the process of a solo worker: it has to be known by then that the process has messages."""
    crew.start("leader", queue="other", **OPTIONS)
    crew.wait()
    publish(channel, "q", *range(20))
    crew.start("dead", prefetch=20, dies=True, **OPTIONS)
    wait_until(lambda: client.zcard("messages_index:{q}") == 20, interval_s=0.005)
    wait_until(lambda: client.zcard("queue:{q}") == 20, GRACE_S + 2)


def test_only_the_message_whose_work_has_begun_has_failed_once_more(channel, crew, client):
    """From a message's first failure on its consumer says when it begins: what waits in a buffer then is not counted."""
    publish(channel, "q", *range(5))
    for key in client.scan_iter("message:{q}:*"):
        client.hset(key, mapping={"failed": 1, "claim": 1})
    crew.start("dead", prefetch=20, work_s=30, **OPTIONS)
    crew.start("leader", queue="other", **OPTIONS)
    crew.wait()
    wait_until(lambda: client.zcard("messages_index:{q}") == 5 and crew.count() == 1 and client.hlen(REGISTRY) == 3)
    crew.kill("dead")
    wait_until(lambda: client.zcard("queue:{q}") == 5)
    assert sorted(fail_counts(client)) == ["1", "1", "1", "1", "2"]


def test_a_message_that_reaches_its_delivery_limit_dies(channel, crew, client):
    declare(channel, "limited", arguments={"x-delivery-limit": 1})
    crew.start("dead", queue="limited", arguments={"x-delivery-limit": 1}, ack=False, **OPTIONS)
    crew.start("leader", queue="q", **OPTIONS)
    crew.wait()
    publish(channel, "limited", 1)
    wait_until(lambda: crew.count() == 1 and client.hlen(REGISTRY) == 3)
    crew.kill("dead")
    wait_until(lambda: client.zcard("dead:{limited}") == 1)
    assert client.zcard("messages_index:{limited}") == 0


def test_a_killed_single_active_consumer_is_replaced_and_its_messages_come_first(channel, crew, client):
    single = {"x-single-active-consumer": True}
    declare(channel, "single", arguments=single)
    for name in ("first", "second"):
        crew.start(name, queue="single", arguments=single, prefetch=5, ack=False, **OPTIONS)
        crew.wait()
    publish(channel, "single", *range(8))
    wait_until(lambda: crew.count() == 5 and client.hlen(REGISTRY) == 3)
    crew.kill("first")
    killed_at = machine_time()
    wait_until(lambda: crew.count() == 10)
    assert machine_time() - killed_at < GRACE_S + 2
    assert [body for name, body, _ in crew.notes() if name == "second"] == ["0", "1", "2", "3", "4"]
    assert client.zcard("consumers:{single}") == 1


def test_a_process_that_stops_in_order_leaves_nothing_to_recover(channel, worker, client):
    first, second = worker(), worker()
    wait_until(lambda: client.hlen(REGISTRY) == 3)
    assert first.stop() == 0
    wait_until(lambda: client.hlen(REGISTRY) == 2)
    assert "is lost" not in second.log()


def test_with_a_grace_of_0_no_process_is_judged(channel, crew, client):
    crew.start("a", connection_lost_grace=0)
    crew.wait()
    publish(channel, "q", 1)
    wait_until(lambda: crew.count() == 1)
    records = [json.loads(text) for name, text in client.hgetall(REGISTRY).items() if name != "version"]
    assert [record["ids"] for record in records] == [[]]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.weekly), "solo", "gevent"])
def test_tasks_of_a_killed_worker_run_elsewhere(pool, worker, send, client, journal):
    """Of prefork the main process alone is killed: its children must not keep its connections open."""
    dead = worker(pool=pool, prefetch=10)
    send("n", 20, 2)
    wait_until(lambda: journal("started:n"), 10, dead.tail)
    heir = worker(concurrency=20)
    wait_until(lambda: client.hlen(REGISTRY) == 3)
    dead.kill_parent_only()
    killed_at = time.monotonic()
    wait_until(lambda: "is lost" in heir.log(), GRACE_S + 2, heir.tail, interval_s=0.05)
    wait_until(lambda: len({*journal("started:n")}) == 20, GRACE_S + 2 - (time.monotonic() - killed_at), heir.tail)
    wait_until(lambda: len({*journal("n")}) == 20, 10, heir.tail)


@pytest.mark.slow
def test_a_long_task_in_a_child_does_not_hide_the_death_of_its_worker(worker, send, client, journal, own_server):
    """A forked child has copies of its parent's sockets, and closes them at the fork (`connection/forks.py`)."""
    dead = worker(pool="prefork", concurrency=2)
    send("n", 2, 15)
    wait_until(lambda: len(journal("started:n")) == 2, 10, dead.tail)
    ids = {one["id"] for one in client.client_list() if one["name"].startswith("celery-redis-plus:") and one["db"] == "0"}
    dead.kill_parent_only()
    killed_at = machine_time()
    wait_until(lambda: not ids & {one["id"] for one in client.client_list()} - _publishers(client), 5, client.client_list)
    assert machine_time() - killed_at < 0.5


def _publishers(client):
    """The test's own connections to the broker."""
    return {one["id"] for one in client.client_list() if one["name"] == "celery-redis-plus:commands"}


@pytest.mark.slow
def test_with_the_default_grace_all_runs_elsewhere_within_seven_seconds(connect, own_server, crew):
    channel = connect(own_server.url()).channel()
    declare(channel, "q")
    crew.start("dead", prefetch=20, ack=False)
    crew.wait()
    publish(channel, "q", *range(20))
    wait_until(lambda: crew.count() == 20)
    crew.start("heir", prefetch=20)
    crew.wait()
    crew.kill("dead")
    killed_at, by_machine = time.monotonic(), machine_time()
    wait_until(lambda: crew.count() == 40, 15)
    assert time.monotonic() - killed_at > 4.5
    assert machine_time() - by_machine < 7
    with own_server.client(JOURNAL_DB) as journal:
        assert journal.llen("notes") == 40
