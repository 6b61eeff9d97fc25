"""`limit`: takes of a limiter while a task runs, and holds one that a service has refused."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Self

from celery import current_app

from celery_redis_plus.broker.queues.limiters import give_back, hold, take, taker_of
from celery_redis_plus.errors import InvalidArgument, LimitReached
from celery_redis_plus.integration.task_limiters import limiter_named
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from celery_redis_plus.transport.api import channel_of
from celery_redis_plus.transport.stored_json import TASK_DELIVERY, TASK_FENCE

if TYPE_CHECKING:
    from types import TracebackType

    from celery_redis_plus.broker.arguments.limiters import Limiter

logger = logging.getLogger(__name__)

#: Seconds after which it asks again, though there may be no room yet: a hold may have ended, or a rule have changed.
ASK_AGAIN_S = 1.0


class limit:  # noqa: N801 - used as a function is, like `contextlib.suppress`
    """Wait until a limiter has room, and take of it: `with limit("openai:90000/m burst=4000", cost=812): ...`.

    The place of a concurrency is given back at the end of the block; what a rate has let through is used. In an eager task it
    limits nothing.

    Args:
        limiter: a name with its rule, as a task's `rate_limit`, or a name that `configure_app` has a rule for.
        key: each key is limited by itself.
        cost: how many tokens of a bucket it takes.
        timeout: seconds for which it waits at most; None: as long as it takes.
        app: the app whose broker has the limiter; None: that of the running task, or the current one.

    Raises:
        InvalidArgument: the limiter, its key or its cost is not allowed; or a concurrency is asked outside a task of a worker, or
            in one whose message was acked before it began.
        LimitReached: there was no room within `timeout`.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """

    def __init__(
        self, limiter: str, *, key: str | float | None = None, cost: float = 1, timeout: float | None = None, app: Any = None
    ) -> None:  # fmt: skip
        self._app = current_app._get_current_object() if app is None else app  # noqa: SLF001 - the documented way
        named: Limiter = limiter_named(self._app, limiter)
        self._limiter = (named if key is None else named.keyed(key)).costing(cost)
        self._timeout = timeout
        self._queue, self._taker = "", b""

    def __enter__(self) -> Self:
        """Take of the limiter, and wait for it."""
        task = self._app.current_worker_task
        if task is not None and task.request.is_eager:
            return self
        self._queue, self._taker = self._taking(task)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with channel_of(self._app) as channel:
                broker = channel.of_queue(self._queue) if self._queue else channel.all_brokers()[0]
                session = broker.session
                patience_s = None if deadline is None else deadline - time.monotonic()
                wait_s = take(session.commands, session.keys, self._limiter, self._taker, patience_s)
            if not wait_s:
                return self
            left_s = wait_s if deadline is None else deadline - time.monotonic()
            if wait_s > left_s:
                raise LimitReached(
                    f"limiter {self._limiter.id!r} ({self._limiter.rule}) has no room within {self._timeout:g} s; there may be "
                    f"in {wait_s:g} s",
                    retry_after=wait_s,
                )
            time.sleep(min(wait_s, ASK_AGAIN_S))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give back the place of a concurrency; the ack of the message does so where the broker is away."""
        if self._limiter.rule.shape != "concurrency" or not self._taker:
            return
        try:
            with channel_of(self._app) as channel:
                session = channel.of_queue(self._queue).session
                give_back(session.commands, session.keys, self._limiter, self._taker)
        except CONNECTION_ERRORS as lost:
            # The work is done, and a task that failed here would do it again.
            logger.warning("the place of limiter %r is free when its message is settled: %s", self._limiter.id, lost)

    @staticmethod
    def hold(limiter: str, seconds: float, *, key: str | float | None = None, app: Any = None) -> None:
        """Stop a limiter for `seconds` from now on, for all processes; 0 ends the stop.

        Args:
            limiter: its name.
            seconds: for how long, up to 30 days.
            key: only this key of it.
            app: as of `limit`.

        Raises:
            InvalidArgument: the name, the key or the time is not allowed; or too many limiters are held.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        with channel_of(current_app if app is None else app) as channel:
            for broker in channel.all_brokers():
                session = broker.session
                hold(session.commands, session.keys, limiter if key is None else f"{limiter}:{key}", seconds)

    def _taking(self, task: Any) -> tuple[str, bytes]:
        """Return the queue of the running task's message, and who takes; '' where no message is meant."""
        properties = {} if task is None else task.request.properties or {}
        tag, _, rest = properties.get(TASK_FENCE, "").partition(" ")
        claim, _, queue = rest.partition(" ")
        if self._limiter.rule.shape != "concurrency":
            return queue, taker_of(queue, tag, claim)
        if not queue or not properties.get(TASK_DELIVERY):
            raise InvalidArgument(
                f"limit of {self._limiter.id!r} ({self._limiter.rule}) outside a task whose message is acked late; allowed in a "
                "task of a worker with acks_late=True, or an ack policy other than ack_first"
            )
        return queue, taker_of(queue, tag, claim)
