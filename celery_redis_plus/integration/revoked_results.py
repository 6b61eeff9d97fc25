"""Tells those who wait for a task that its message was taken out of the broker: no worker will ever see it, and tell them."""

from __future__ import annotations

import logging
from typing import Any

from celery.app.task import Context
from kombu.serialization import prepare_accept_content

from celery_redis_plus.stored_message import Claimed
from celery_redis_plus.transport.kombu_message import Message, payload_of

logger = logging.getLogger(__name__)


def mark_revoked(app: Any, queue: str, tag: str, envelope: bytes, body: bytes) -> None:
    """Have the result of the task in a removed message say REVOKED, and its chord hear of it, as a worker does it.

    What is no task has no result. An error of the result backend is logged: the message is gone.
    """
    try:
        claimed = Claimed(tag, queue, 0, 0, redelivered=False, envelope=envelope, body=body)
        request = _request(Message(payload_of(claimed), accept=prepare_accept_content(app.conf.accept_content)))
        if request is None:
            return
        task = app.tasks.get(request.task)
        backend = app.backend if task is None else task.backend
        backend.mark_as_revoked(request.id, "revoked", request, store_result=not request.ignore_result)
    except Exception:
        logger.exception(
            "the message %s of queue %r is removed, and its result is not REVOKED", tag, queue, extra={"tag": tag, "queue": queue}
        )


def _request(message: Message) -> Any:
    """Return a task's request, as result backends read it; None of a message that is no task."""
    body = message.decode()
    if "task" in message.headers:
        _, _, embedded = body
        known = {**message.headers, "chord": embedded.get("chord")}
    elif isinstance(body, dict) and "task" in body:
        # Celery's first message protocol.
        known = {**body, "group": body.get("taskset") or body.get("group")}
    else:
        return None
    sent = {name: message.properties.get(name) for name in ("correlation_id", "reply_to")}
    return Context({**known, **sent, "delivery_info": message.delivery_info})
