"""`ack`, `nack` and `reject`, by which a task settles its own message while it runs.

A task knows its delivery by a token in the message's properties: tag and claim number. `worker_settlements` settles it.
"""

from __future__ import annotations

from typing import Any

from celery import current_app

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS
from celery_redis_plus.broker.consumers.last_error import failure_of
from celery_redis_plus.errors import InvalidArgument, NotSettled
from celery_redis_plus.transport.stored_json import TASK_DELIVERY

#: What a task's request remembers: how the task has settled its message.
_SETTLED = "redisplus_settled"


def ack() -> None:
    """Settle the message of the running task as done, now: it is not delivered again, however the task goes on.

    Raises:
        NotSettled: no task of a worker runs here; or its message is settled already. One that another consumer has by now is
            removed all the same.
    """
    _settle("ack")


def nack(delay: float | None = None) -> None:
    """Send the message of the running task back as failed, now: it is delivered again, or dies at the delivery limit.

    Args:
        delay: seconds until then; None leaves them to the queue's retry policy.

    Raises:
        NotSettled: as `ack`; or another consumer has the message, which decides about it.
        InvalidArgument: `delay` is no number of seconds from 0 to a hundred years; or the message is a broadcast.
    """
    _settle("nack", delay_ms=None if delay is None else _to_ms(delay))


def reject(reason: str | None = None) -> None:
    """Make a dead letter of the message of the running task, now.

    Args:
        reason: what the dead letter and its events have as `error`, `Reject: the reason`; the first 500 bytes of it.

    Raises:
        NotSettled: as `nack`.
    """
    _settle("reject", error=None if reason is None else failure_of("Reject", str(reason)).text)


def _to_ms(delay: object) -> int:
    """Return seconds in ms. Raises InvalidArgument."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay * 1000 <= MAX_DELAY_MS:
        raise InvalidArgument(f"argument 'delay' of nack is {delay!r}; allowed is a number of seconds from 0 on, and None")
    return round(delay * 1000)


def _settle(how: str, **what: Any) -> None:
    task = current_app.current_worker_task
    if task is None:
        raise NotSettled(f"{how}() was called outside a task of a worker; call it inside one, in the thread that runs it")
    request, name = task.request, f"task {task.name}[{task.request.id}]"
    if request.is_eager:
        raise NotSettled(f"{how}() cannot settle {name}, which runs eagerly and has no message; call it in a task that was sent")
    before = getattr(request, _SETTLED, None)
    if before is not None:
        raise NotSettled(f"{how}() comes after {before}() in {name}: its message is settled")
    token = (request.properties or {}).get(TASK_DELIVERY)
    if token is None:
        raise NotSettled(f"{how}() cannot settle the message of {name}: it did not come over a broker of celery-redis-plus")
    if not token:
        raise NotSettled(
            f"{how}() comes too late: the message of {name} was acked before the task began; set acks_late=True, or an ack "
            "policy other than ack_first"
        )
    if what.get("delay_ms") is not None and token.endswith(" 0"):
        raise InvalidArgument(f"argument 'delay' of nack in {name}: a broadcast comes again at once; allowed is None")
    # Only now: programs that only send tasks import the functions above with the modules of their tasks.
    from celery_redis_plus.integration.worker_settlements import settle

    settle(token, how, **what)
    setattr(request, _SETTLED, how)
