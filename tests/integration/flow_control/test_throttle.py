"""`x-throttle`: publishers slow down before a queue is full."""

from __future__ import annotations

import time

import pytest

from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import publish


@pytest.fixture
def naps(monkeypatch):
    """What publishers slept, in seconds; nobody really does."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_a_publisher_sleeps_one_second_by_the_number_of_free_places(bounded, channel, naps):
    queue = bounded(max_pending=20, throttle=True, overflow="reject-publish")
    publish(channel, queue, *range(20))
    # 1 / (max_pending * remaining ratio), once less than half is free.
    assert naps == pytest.approx([1 / free for free in range(9, 0, -1)], abs=1e-5)


@pytest.mark.parametrize(("threshold", "first"), [(0.25, 4), (1.0, 19), (True, 9)])
def test_the_queue_may_have_a_threshold_of_its_own(bounded, channel, naps, threshold, first):
    queue = bounded(max_length=20, throttle=threshold, overflow="reject-publish")
    publish(channel, queue, *range(20))
    assert naps[0] == pytest.approx(1 / first, abs=1e-5)
    assert len(naps) == first


def test_else_the_publisher_has(bounded, connect, naps):
    channel = connect(throttle_threshold=0.2).channel()
    queue = bounded(max_length=20, throttle=True)
    publish(channel, queue, *range(20))
    assert len(naps) == 3


def test_it_never_sleeps_longer_than_publish_timeout(bounded, connect, naps):
    channel = connect(publish_timeout=0.15).channel()
    queue = bounded(max_length=20, throttle=True)
    publish(channel, queue, *range(20))
    assert naps == pytest.approx([1 / 9, 1 / 8, 1 / 7] + [0.15] * 6, abs=1e-5)


def test_what_it_slept_is_counted(bounded, channel, naps, record):
    queue = bounded(max_length=20, throttle=True)
    publish(channel, queue, *range(20))
    assert int(record()["throttled"]) == len(naps) == 9
    assert int(record()["throttled_us"]) == round(sum(naps) * 1e6)


def test_a_queue_without_throttle_lets_nobody_sleep(bounded, channel, naps):
    publish(channel, bounded(max_length=20), *range(30))
    assert naps == []


@pytest.mark.parametrize("throttle", [True, 0.5])
def test_a_throttle_without_a_limit_is_refused(bounded, throttle):
    with pytest.raises(InvalidArgument, match="x-throttle"):
        bounded(throttle=throttle)
    bounded(throttle=False)
