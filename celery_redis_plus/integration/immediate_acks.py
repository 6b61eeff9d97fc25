"""Lets acks of a worker's tasks leave at once, instead of with the next turn of its loop.

Celery hands acks and rejects to its event loop (`Consumer.call_soon`; `call_soon_ack` since 5.7), because py-amqp's channels
belong to one thread. Ours take settlements from any thread. What ended between a task's end and the loop's next turn was run
again when the worker was killed there: 0.6 tasks a kill with threads, which compete with the loop for the interpreter's lock.
Acks of tasks that are acked before they begin are another matter: the transport lets them wait for each other (`QoS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_redis_plus.integration import compat
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.transport.delivered_message import Message


def install_immediate_acks(consumer: Any) -> None:
    """Let `consumer` settle our messages in the thread that says so; idempotent."""
    for name in compat.schedulers(consumer):
        wrap(consumer, name, _call)


def _call(later: Callable[..., Any], function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a method of our messages, which only settles; leave everything else to the loop."""
    if isinstance(getattr(function, "__self__", None), Message):
        return function(*arguments, **named)
    return later(function, *arguments, **named)
