"""A machine that is suspended: its clock jumps when it wakes up, while others may have taken over what it held."""

from __future__ import annotations

import time

import pytest

from celery_redis_plus import clock
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

SLEEP_S = 3600.0


@pytest.fixture
def sleep(monkeypatch):
    """Return what suspends this machine for `SLEEP_S`."""
    now_s = clock.now_s
    return lambda: monkeypatch.setattr(clock, "now_s", lambda: now_s() + SLEEP_S)


def test_after_a_suspend_buffered_messages_are_checked_before_they_begin(connect, redis_client, sleep):
    channel = connect().channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(3))
    inbox.drain(1)
    # Else its heartbeat may ask first.
    channel.session.service.stop()
    lost = channel.queue_consumers.buffer[0].tag
    sleep()
    redis_client.hincrby(channel.session.keys.queue("q").message + lost.encode(), "claim", 1)
    assert inbox.rest() == [0, 2]


def test_after_a_suspend_heartbeats_run_at_once(connect, redis_client, sleep):
    channel = connect(visibility_timeout=300).channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "m")
    inbox.drain(1)
    service, index = channel.session.service, channel.session.keys.queue("q").index
    wait_until(lambda: service.tasks.lease_heartbeats.next_run_at > clock.now_s() + 1)
    tag = next(iter(service.unacked_messages.tags()))
    redis_client.zadd(index, {tag: 1e12})
    sleep()
    service.wake()
    wait_until(lambda: redis_client.zscore(index, tag) > 1e12)
    assert service.tasks.lease_heartbeats.late == 1


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that runs on in a suspend")
def test_the_clock_is_the_one_that_runs_on_in_a_suspend():
    assert abs(clock.now_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
