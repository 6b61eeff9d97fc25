from __future__ import annotations

import os
import threading

import pytest

from celery_redis_plus.topology.readable import wait_readable
from celery_redis_plus.topology.waker import Waker


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.close()


def readable(waker, timeout_s=0.0):
    return bool(wait_readable([waker.fileno()], timeout_s))


def test_it_is_readable_from_wake_until_clear(waker):
    assert not readable(waker)
    waker.wake()
    waker.wake()
    assert readable(waker)
    waker.clear()
    assert not readable(waker)


def test_a_wake_while_it_is_cleared_is_not_lost_for_later(waker, monkeypatch):
    """The byte of a wake that comes between the two halves of a clear must not be eaten while its flag stays up."""
    read = os.read

    def read_and_be_woken(descriptor, size):
        waker.wake()
        return read(descriptor, size)

    waker.wake()
    monkeypatch.setattr(os, "read", read_and_be_woken)
    waker.clear()
    monkeypatch.undo()
    waker.wake()
    assert readable(waker)


def test_many_threads_wake_one_that_clears_and_no_work_stays_undone(waker):
    todo: list[int] = []
    done = 0
    threads = [threading.Thread(target=lambda: [(todo.append(1), waker.wake()) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while done < 8000:
        assert readable(waker, 5.0), f"asleep with {len(todo)} things to do"
        waker.clear()
        while todo:
            todo.pop()
            done += 1
    for thread in threads:
        thread.join()


def test_a_closed_one_can_be_woken_and_cleared(waker):
    waker.close()
    waker.wake()
    waker.clear()
    waker.close()
