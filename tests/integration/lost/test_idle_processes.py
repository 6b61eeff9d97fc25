"""While all processes are idle, they are watched rarely, and in time again before one of them delivers a message."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import IDLE_LEASE_S, IDLE_S, LEASE_S
from celery_redis_plus.broker.consumers.registry import Consumer
from celery_redis_plus.maintenance.lost_processes import LOOK_S
from celery_redis_plus.maintenance.presence import BUSY_S
from tests.integration.lost.conftest import GRACE_S, KEYS
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until

WATCHERS = KEYS.processes[1]
#: Commands a second that the watch may cost, for each process.
MOST_COMMANDS = 0.1


def live(processes, time, client, seconds):
    """Let processes do what is due, or what they are woken for, for so long; return how many commands they have sent."""
    client.config_resetstat()
    for _ in range(round(seconds / 0.1)):
        time.advance(0.1)
        for process in processes:
            if client.delete(KEYS.processes[2] + process.name.encode()):
                process.task.run_soon()
            if process.task.next_run_at <= clock.now_s():
                process.task.run()
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "client|list", "info"))


def lease_s(client, name):
    seconds, microseconds = client.time()
    return client.zscore(WATCHERS, name) / 1000 - seconds - microseconds / 1e6


@pytest.fixture
def idle(start, time, redis_client):
    """Three processes, two of which watch, that have been idle for long."""
    processes = [start(name) for name in ("a", "b", "c")]
    live(processes, time, redis_client, BUSY_S + 3 * IDLE_S)
    return processes


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_what_idle_processes_send(count, start, time, redis_client):
    processes = [start(f"p{number}") for number in range(count)]
    live(processes, time, redis_client, BUSY_S + 3 * IDLE_S)
    assert live(processes, time, redis_client, 5 * IDLE_S) <= MOST_COMMANDS * count * 5 * IDLE_S


def test_a_process_stays_busy_for_a_while_after_its_last_message(start, time, redis_client):
    one, _ = start("one"), start("other")
    live([one], time, redis_client, BUSY_S + IDLE_S)
    assert not one.record(redis_client).busy
    one.claim()
    one.settle()
    one.task.run_soon()
    one.task.run()
    assert one.record(redis_client).busy
    live([one], time, redis_client, BUSY_S / 2)
    assert one.record(redis_client).busy
    live([one], time, redis_client, BUSY_S + IDLE_S)
    assert not one.record(redis_client).busy


def test_a_process_with_a_privilege_is_busy(start, time, redis_client):
    one = start("one")
    one.watched.add("q", "one.1", None, Consumer("one.1", "q", "tag", priority=3))
    live([one], time, redis_client, BUSY_S + IDLE_S)
    assert one.record(redis_client).busy


def test_a_message_makes_the_watchers_look_often_again(idle, time, redis_client):
    first, second, third = idle
    assert lease_s(redis_client, "a") > IDLE_LEASE_S / 2
    third.claim()
    assert not third.task.told_busy
    assert third.task.next_run_at == 0
    third.task.run()
    assert third.task.told_busy
    assert third.record(redis_client).busy
    # Where a watcher is dead, its place is free as early as that of others.
    assert lease_s(redis_client, "a") <= LEASE_S
    live(idle, time, redis_client, 0.2)
    assert lease_s(redis_client, "a") <= LEASE_S
    for watcher in (first, second):
        assert watcher.task.next_run_at <= clock.now_s() + LOOK_S


def test_watchers_of_idle_processes_notice_the_end_of_one_and_look_often_then(idle, time, redis_client):
    idle[2].close()
    live(idle[:2], time, redis_client, IDLE_S + 5 + 2 * LOOK_S)
    assert sorted(redis_client.hkeys(KEYS.processes[0])) == [b"a", b"b", b"version"]


def test_a_message_that_comes_while_the_process_says_that_it_is_idle_is_told_at_once(
    start,
    time,
    redis_client,
    monkeypatch,
):
    one = start("one")
    time.advance(BUSY_S + IDLE_S)
    report = one.registry.report

    def claims_meanwhile(*arguments, **named):
        monkeypatch.undo()
        monkeypatch.setattr(clock, "now_s", lambda: time._now)  # noqa: SLF001
        one.claim()
        assert not one.task.told_busy
        return report(*arguments, **named)

    monkeypatch.setattr(one.registry, "report", claims_meanwhile)
    one.task.run()
    assert one.task.next_run_at == 0
    one.task.run()
    assert one.record(redis_client).busy


@pytest.mark.slow
def test_an_idle_process_that_dies_at_its_next_delivery_leaves_nothing_for_longer_than_the_grace(
    connect, own_server, crew, client
):
    """As by a task that ends the process of a solo worker: its watchers look often before the delivery."""
    options = {"connection_lost_grace": GRACE_S}
    channel = connect(own_server.url()).channel()
    declare(channel, "q")
    crew.start("watcher", queue="other", **options)
    crew.start("dead", prefetch=20, dies=True, **options)
    crew.wait()

    def looks_rarely():
        seconds, _ = client.time()
        return all(until / 1000 > seconds + LEASE_S for _, until in client.zrange(WATCHERS, 0, -1, withscores=True))

    wait_until(lambda: client.zcard(WATCHERS) == 2 and looks_rarely(), BUSY_S + 2 * IDLE_S)
    publish(channel, "q", 1)
    wait_until(lambda: client.zcard("messages_index:{q}") == 1, interval_s=0.005)
    wait_until(lambda: client.zcard("queue:{q}") == 1, GRACE_S + 2)
