"""`ack`, `nack` and `reject`, by which a task settles its own message while it runs.

A task knows its delivery by a token in the message's properties: tag and claim number. The worker's main process settles it,
through the message that it has delivered under the same token; the processes of a prefork pool tell it by a pipe.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import current_app
from celery.concurrency import prefork

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS
from celery_redis_plus.broker.consumers.last_error import failure_of
from celery_redis_plus.errors import InvalidArgument, NotSettled
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.child_settlements import ChildSettlements
from celery_redis_plus.integration.prefork_pool import copied
from celery_redis_plus.maintenance.process_services import services
from celery_redis_plus.transport.kombu_message import Message
from celery_redis_plus.transport.stored_json import TASK_DELIVERY

logger = logging.getLogger(__name__)

#: What a task's request remembers: how the task has settled its message.
_SETTLED = "redisplus_settled"

#: Of the workers of this process that have pools of processes, the last one; made with the first of them.
children: list[ChildSettlements] = []


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
    if children and not children[-1].is_ours:
        children[-1].send(token=token, how=how, **what)
    else:
        _settle_here(token, how, **what)
    setattr(request, _SETTLED, how)


def _settle_here(token: str, how: str, *, delay_ms: int | None = None, error: str | None = None) -> None:
    """Settle a delivery that this process holds. Raises NotSettled where it does not any more."""
    message = _message(token)
    settled = message is not None and message.settle_for_task(how, delay_ms=delay_ms, error=error)
    for request in (*copied(worker_compat.active_requests()), *copied(worker_compat.requests().values())):
        if message is not None and request.message is message:
            # For Celery: neither is it settled again, nor is the task ended when the connection is lost.
            request.acknowledged = True
            break
    if not settled:
        tag = token.rpartition(" ")[0]
        raise NotSettled(f"{how}() comes too late: message {tag} is settled, or was given to another consumer")


def settle_for_child(*, token: str, how: str, **what: Any) -> None:
    """Settle what a process of the pool says, in the main process. Never raises."""
    try:
        _settle_here(token, how, **what)
    except NotSettled as error:
        logger.warning("a process of the pool: %s", error)
    except Exception:
        tag = token.rpartition(" ")[0]
        logger.exception("a process of the pool: %s() of message %s failed", how, token, extra={"tag": tag})


def _message(token: str) -> Message | None:
    tag = token.rpartition(" ")[0]
    for service in services():
        unacked = service.unacked_messages.find(tag) or service.positions.find(tag)
        message = None if unacked is None else unacked.alive
        if isinstance(message, Message) and message.properties.get(TASK_DELIVERY) == token:
            return message
    return None


# -- for the worker -------------------------------------------------------------------------------------------------------


def settled_by_task(message: Message) -> str:
    """Return `ack`, `nack` or `reject` where the task of `message` has settled it, which its process may just have said."""
    if children and children[-1].is_ours and message.properties.get(TASK_DELIVERY):
        children[-1].read()
    return message.settled_by_task


def listen_to_children(pool: Any, loop: Any = None) -> None:
    """Have tasks in the processes of `pool` heard: before it forks them, and then by each event loop; idempotent."""
    if not isinstance(pool, prefork.TaskPool):
        return
    if not children or not children[-1].is_ours:
        # A child that becomes a worker's main process has its parent's.
        children[:] = [ChildSettlements(settle_for_child)]
    if loop is not None:
        loop.add_reader(children[-1].fileno(), children[-1].read)
