"""How often acks that are gathered wake the thread which bounds their wait."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.acks import EARLY_ACK_DELAY_S
from celery_redis_plus.maintenance.ack_flush import LOOKED_AT_S, AckFlush


class Loop:
    """An acknowledger whose loop sends what is batched with its claims."""

    def __init__(self, flush: AckFlush, clock) -> None:
        self.flush_scheduled = self.has_batched = False
        self.last_due_at = 0.0
        self.flushed = 0
        self._flush, self._clock = flush, clock

    def batch(self):
        self.has_batched = True
        self.last_due_at = self._clock() + EARLY_ACK_DELAY_S
        if not self.flush_scheduled:
            self._flush.schedule(self)

    def claim(self):
        self.has_batched = False

    def flush_due(self):
        if self.has_batched and self.last_due_at <= self._clock():
            self.flushed += 1
            self.has_batched = False


@pytest.fixture
def wakeups():
    return []


@pytest.fixture
def flush(wakeups):
    return AckFlush(lambda: wakeups.append(1))


def run_due(flush, clock):
    if flush.next_run_at <= clock():
        flush.run()


def test_a_loop_that_goes_on_wakes_the_thread_once(flush, wakeups, clock):
    loop = Loop(flush, clock)
    for _ in range(100):
        loop.batch()
        clock.advance(0.013)
        loop.claim()
        run_due(flush, clock)
    assert len(wakeups) == 1
    assert loop.flushed == 0


def test_an_ack_that_its_loop_leaves_behind_is_sent_at_the_second_look_at_the_latest(flush, clock):
    loop = Loop(flush, clock)
    loop.batch()
    clock.advance(EARLY_ACK_DELAY_S / 2)
    loop.claim()
    # While the thread looks unasked.
    loop.batch()
    for _ in range(2):
        clock.now_s = max(clock(), flush.next_run_at)
        run_due(flush, clock)
    assert loop.flushed == 1


def test_nothing_looks_at_a_loop_without_acks(flush, wakeups, clock):
    loop = Loop(flush, clock)
    loop.batch()
    loop.claim()
    clock.advance(EARLY_ACK_DELAY_S + LOOKED_AT_S)
    run_due(flush, clock)
    assert flush.next_run_at == float("inf")
    loop.batch()
    assert len(wakeups) == 2
