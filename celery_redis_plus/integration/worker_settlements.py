"""How a worker settles what its tasks say of their own messages while they run (`task_settlements`).

The worker's main process settles a delivery through the message that it has delivered under the task's token; the processes of a
prefork pool tell it by a pipe.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.concurrency import prefork

from celery_redis_plus.errors import NotSettled
from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.child_settlements import ChildSettlements
from celery_redis_plus.integration.prefork_pool import copied
from celery_redis_plus.maintenance.process_services import services
from celery_redis_plus.transport.kombu_message import Message
from celery_redis_plus.transport.stored_json import TASK_DELIVERY

logger = logging.getLogger(__name__)

#: Of the workers of this process that have pools of processes, the last one; made with the first of them.
children: list[ChildSettlements] = []


def settle(token: str, how: str, **what: Any) -> None:
    """Settle the delivery of a task that runs, in whichever process. Raises NotSettled where it is not held any more."""
    if children and not children[-1].is_ours:
        children[-1].send(token=token, how=how, **what)
    else:
        _settle_here(token, how, **what)


def _settle_here(token: str, how: str, *, delay_ms: int | None = None, error: str | None = None) -> None:
    """Settle a delivery that this process holds. Raises NotSettled where it does not any more."""
    message = _message(token)
    settled = message is not None and message.settle_for_task(how, delay_ms=delay_ms, error=error)
    for request in (*worker_compat.active_requests(), *copied(worker_compat.requests().values())):
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


def settled_by_task(message: Message) -> str:
    """Return `ack`, `nack` or `reject` where the task of `message` has settled it, which its process may just have said."""
    if children and children[-1].is_ours and message.properties.get(TASK_DELIVERY):
        children[-1].read_settlements()
    return message.settled_by_task


def listen_to_children(pool: Any, loop: Any = None) -> None:
    """Have tasks in the processes of `pool` heard: before it forks them, and then by each event loop; idempotent."""
    if not isinstance(pool, prefork.TaskPool):
        return
    if not children or not children[-1].is_ours:
        # A child that becomes a worker's main process has its parent's.
        children[:] = [ChildSettlements(settle_for_child)]
    if loop is not None:
        loop.add_reader(children[-1].fileno(), children[-1].read_settlements)
