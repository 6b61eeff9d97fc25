"""Wakeups that reach a process while what it consumes changes: none is lost, and no message waits for the next sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from celery_redis_plus.broker.consumers.wakeup_waiter import WakeupWaiter
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis


@pytest.fixture
def waiter(channel) -> Iterator[Callable[[str], WakeupWaiter]]:
    """Make waiters by name, as consumers and maintenance threads have them."""
    session = channel.session
    opened = []

    def make(name: str) -> WakeupWaiter:
        opened.append(BlockingConnection(session.connector, name, timeout=5))
        wake = session.keys.client_wakeup(name)
        return WakeupWaiter(opened[-1], session.commands, wake=wake, polling_interval_s=30)

    yield make
    for connection in opened:
        connection.close()


@contextmanager
def stopped(service) -> Iterator[None]:
    service.stop()
    yield
    service.start()


def test_a_wakeup_that_came_before_a_wait_is_cancelled_goes_to_the_next_who_waits(waiter, redis_client: redis.Redis):
    first, second, wakeup = waiter("first"), waiter("second"), b"wakeup:{q}"
    first.start_wait([wakeup])
    wait_until(lambda: redis_client.info("clients")["blocked_clients"])
    redis_client.zadd(wakeup, {"work": 0})
    wait_until(lambda: not redis_client.exists(wakeup))
    second.start_wait([wakeup])
    first.cancel_wait()
    wait_until(second.arrived)
    assert second.take() == wakeup
    assert not redis_client.exists("client_wakeup:{first}")


def test_a_queue_that_has_woken_a_process_is_swept_though_its_consumer_ends_at_that_moment(connect, redis_client: redis.Redis):
    other = connect(client_name="other").channel()
    inbox = Inbox(connect().channel(), "q")
    service = inbox.channel.session.service
    publish(other, "q", "now")
    inbox.drain(1)
    with stopped(service):
        publish(other, "q", "later", headers={"x-delay": 20})
        ((_, due_ms),) = redis_client.zrange("delayed:{q}", 0, -1, withscores=True)
        wait_until(lambda: redis_client.time()[0] * 1000 + redis_client.time()[1] / 1000 > due_ms)
        service.tasks.sweeper.run_soon("q")
        inbox.cancel()
        service._work(news=True)  # noqa: SLF001 - the thread's next turn
        assert other.queue_sizes("q").ready == 1


def test_a_process_that_had_nothing_to_wait_for_waits_for_its_next_queue(connect, redis_client: redis.Redis):
    other = connect(client_name="other").channel()
    inbox = Inbox(connect().channel(), "q")
    service = inbox.channel.session.service
    inbox.cancel()
    wait_until(lambda: not service.tasks.leadership.leads and service._swept == {})  # noqa: SLF001 - its thread's turn
    inbox.consumer.consume()
    wait_until(lambda: list(service._swept) == ["q"])  # noqa: SLF001 - as above
    publish(other, "q", "later", headers={"x-delay": 20})
    # The next sweep without a wakeup comes after 10 s.
    assert inbox.drain(1, timeout_s=4) == ["later"]
