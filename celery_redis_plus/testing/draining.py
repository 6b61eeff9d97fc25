"""Runs the tasks of a test: a worker in a thread of this process, and `drain`, which waits until nothing is left to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.contrib.testing.worker import start_worker, test_worker_started
from celery.worker import state
from kombu.asynchronous import get_event_loop, set_event_loop

from celery_redis_plus.broker.queues.limiters import waiting_longer
from celery_redis_plus.broker.queues.overview import read_overviews
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.testing.tested_app import app_of

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.broker.queues.overview import QueueOverview
    from celery_redis_plus.consumer.publisher_session import PublisherSession

#: Seconds between two looks at the queues.
INTERVAL_S = 0.01
#: Seconds within which a worker's loop hears that it shall end; by itself it would sleep for up to two.
AWAKE_S = 0.05


@contextmanager
def running_worker(app: Celery, **options: Any) -> Iterator[Any]:
    """Run a worker of `app` in a thread, as `celery.contrib.testing.worker.start_worker` does; `options` are its own."""
    test_worker_started.connect(_keep_awake, sender=app)
    # The loop that an earlier worker of this process has left knows nothing of the timer of this one (Celery 5.6).
    loop = get_event_loop()
    set_event_loop(None)
    try:
        # It sets the level of the root logger, for all tests that follow: to what it is.
        level = logging.getLogger().level
        with start_worker(app, **{"perform_ping_check": False, "loglevel": level, **options}) as worker:
            yield worker
    finally:
        set_event_loop(loop)
        test_worker_started.disconnect(_keep_awake, sender=app)
        # Requests of a worker that failed would count as running in the tests that follow.
        state.reset_state()


def _keep_awake(consumer: Any, **_: Any) -> None:
    consumer.timer.call_repeatedly(AWAKE_S, lambda: None)


def drain(*, app: Celery | None = None, timeout: float = 10.0) -> int:
    """Run what is ready in the queues of `app`, and what that enqueues; return how many tasks this process has run.

    A worker of the app does it where one consumes; without one, a worker in a thread of this process, for as long as this lasts.
    Delayed tasks stay, and those whose limiter has no room within `timeout`: see `advance`.
    A worker in another process may still run a task that it has acked early.

    Args:
        app: the app; None: the current one.
        timeout: seconds after which it gives up.

    Raises:
        AssertionError: something is left after `timeout` seconds; the text says how much, and in which queues.
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    used, ran = app_of(app), 0
    deadline = time.monotonic() + timeout

    def count(**_: Any) -> None:
        nonlocal ran
        ran += 1

    with ExitStack() as stack:
        sessions = [session for _, session in stack.enter_context(connected_shards(used))]
        signals.task_postrun.connect(count)
        stack.callback(signals.task_postrun.disconnect, count)
        worker = None
        if not any(one.consumers for one in _overviews(used, sessions)):
            worker = stack.enter_context(running_worker(used))
        while not _is_done(used, sessions, timeout):
            if worker is not None:
                _consume_all(used, worker.consumer)
            if time.monotonic() >= deadline:
                raise AssertionError(_left(_overviews(used, sessions), timeout))
            time.sleep(INTERVAL_S)
    return ran


def _consume_all(app: Celery, consumer: Any) -> None:
    """Have a worker of this process consume also those queues of its app that a route or a task has made meanwhile."""
    consuming = consumer.task_consumer
    if consuming is not None:
        for name in [name for name in list(app.amqp.queues) if not consuming.consuming_from(name)]:
            # In the thread of its loop; a second call changes nothing.
            consumer.timer.call_after(0, consumer.add_task_queue, (name,))


def _overviews(app: Celery, sessions: Sequence[PublisherSession]) -> list[QueueOverview]:
    queues = list(app.amqp.queues)
    return [one for session in sessions for one in read_overviews(session.commands, session.keys, queues)]


def _is_done(app: Celery, sessions: Sequence[PublisherSession], timeout: float) -> bool:
    """Return whether nothing was ready, held or run at one moment: between two looks that found nothing, and nothing published.

    Celery acks most tasks before it runs them, so that this process's own workers are asked as well.
    """
    before = _overviews(app, sessions)
    if not _is_idle(before, sessions, timeout) or worker_compat.requests():
        return False
    after = _overviews(app, sessions)
    idle = _is_idle(after, sessions, timeout)
    return idle and [one.published for one in before] == [one.published for one in after]


def _is_idle(found: list[QueueOverview], sessions: Sequence[PublisherSession], timeout: float) -> bool:
    """Return whether nothing is in work, and what is ready waits for limiters for longer than `timeout`."""
    return not any(
        one.unacked
        or (
            one.ready
            and one.ready > sum(waiting_longer(session.commands, session.keys, one.queue, timeout) for session in sessions)
        )
        for one in found
    )


def _left(found: list[QueueOverview], timeout: float) -> str:
    rows = [
        f"\n  {one.queue}: {one.ready} ready, {one.unacked} unacked, {one.consumers} consumers"
        + (f", paused: {one.paused}" if one.paused else "")
        for one in found
        if one.ready or one.unacked
    ]
    running = [f"\n  running: {request.name}[{request.id}]" for request in worker_compat.requests().values()]
    return f"drain() is not done after {timeout:g} s:{''.join(rows + running) or ' tasks publish further ones all the time'}"
