"""Expired tasks that no worker revokes: somebody waits for their results, so none is given up without a word."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

import celery_redis_plus
from celery_redis_plus import scripts
from celery_redis_plus.broker.queues.expired_tasks import ExpiredTasks
from tests.support.clock import OFFSET_INCLUDES, SteppingClock, composed_with
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

DAY_S = 86_400


@pytest.fixture
def clock(redis_client):
    """A server clock that can be stepped, and an outbox of three."""
    outbox = scripts._read("include/expired_tasks.lua")  # noqa: SLF001 - as tests.support.clock has it
    small = outbox.replace("= 10000, ", "= 3, ")
    assert small != outbox
    with composed_with({**OFFSET_INCLUDES, "include/expired_tasks.lua": small}):
        yield SteppingClock(redis_client)


def expire(channel, queue, *names):
    """Publish tasks that have expired."""
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    for name in names:
        publish(channel, queue, name, headers={"task": "t", "id": name, "expires": past})


def unrevoked(connection, queue):
    return celery_redis_plus.counters(queue, connection=connection).unrevoked


def waiting(channel, redis_client):
    """Return the tasks that still wait for a worker."""
    tasks = ExpiredTasks(channel.session.commands, channel.session.keys)
    return sorted(task.body.decode() for task in tasks.take(tasks.names()))


@pytest.mark.not_on("cluster", "cluster-tls", reason="the clock of its scripts is a key of another slot")
def test_tasks_beyond_the_bound_are_the_oldest_and_are_counted_and_logged(clock, connect, redis_client, caplog):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q", "r")
    Inbox(channel, "elsewhere")
    expire(channel, "q", "1", "2")
    wait_until(lambda: redis_client.zcard("expired") == 2)
    expire(channel, "r", "3", "4", "5")
    wait_until(lambda: channel.queue_counters("r").expired == 3)
    assert waiting(channel, redis_client) == ["3", "4", "5"]
    assert (unrevoked(channel, "q"), unrevoked(channel, "r")) == (2, 0)
    wait_until(lambda: sum("2 expired task(s) of queue 'q' never become REVOKED" in text for text in caplog.messages) == 1)
    assert len(redis_client.keys("expired_task:*")) == 3


@pytest.fixture
def small_outbox(redis_client):
    """An outbox of 2,000 bytes."""
    outbox = scripts._read("include/expired_tasks.lua")  # noqa: SLF001 - as above
    small = outbox.replace("OUTBOX_BYTES = 67108864", "OUTBOX_BYTES = 2000")
    assert small != outbox
    with composed_with({"include/expired_tasks.lua": small}):
        yield


def outbox_bytes(redis_client):
    copies = redis_client.keys("expired_task:*")
    return sum(redis_client.hstrlen(key, "payload") + redis_client.hstrlen(key, "body") for key in copies)


@pytest.mark.usefixtures("small_outbox")
def test_tasks_beyond_the_bound_in_bytes_are_counted_and_logged(connect, redis_client, caplog):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q")
    Inbox(channel, "elsewhere")
    bodies = [letter * 250 for letter in "abcdefgh"]
    expire(channel, "q", *bodies, "x" * 3000)
    wait_until(lambda: channel.queue_counters("q").expired == 9)
    kept = waiting(channel, redis_client)
    assert 0 < len(kept) < 8
    assert kept == bodies[-len(kept) :]
    assert 0 < outbox_bytes(redis_client) == redis_client.zscore("expired_bytes", "") <= 2000
    assert unrevoked(channel, "q") == 9 - len(kept)
    logged = re.compile(r"(\d+) expired task\(s\) of queue 'q' never become REVOKED")
    wait_until(lambda: sum(map(int, logged.findall(caplog.text))) == 9 - len(kept), message=lambda: caplog.text)


@pytest.mark.usefixtures("small_outbox")
def test_what_is_revoked_makes_room_in_bytes(connect, redis_client):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q")
    Inbox(channel, "elsewhere")
    expire(channel, "q", "a" * 300, "b" * 300)
    wait_until(lambda: channel.queue_counters("q").expired == 2)
    tasks = ExpiredTasks(channel.session.commands, channel.session.keys)
    tasks.done(tasks.take(tasks.names()))
    assert set(redis_client.keys("expired*")) <= {b"expired_wakeup"}


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.not_on("cluster", "cluster-tls", reason="the clock of its scripts is a key of another slot")
def test_a_task_that_waits_for_longer_than_a_day_is_counted_and_logged(clock, connect, redis_client, caplog, taken):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q")
    Inbox(channel, "elsewhere")
    expire(channel, "q", "old")
    wait_until(lambda: redis_client.zcard("expired") == 1)
    if taken:
        # By a worker that has no such task, and leaves it to others.
        assert waiting(channel, redis_client) == ["old"]
    clock.step(DAY_S + 60)
    wait_until(lambda: not waiting(channel, redis_client))
    wait_until(lambda: unrevoked(channel, "q") == 1)
    wait_until(lambda: any("1 expired task(s) of queue 'q' never become REVOKED" in text for text in caplog.messages))
    assert redis_client.keys("expired_task:*") == []
