"""Publishes many tasks at once: `send_many`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from celery.canvas import Signature

from celery_redis_plus.errors import InvalidArgument, OptionError

#: How many messages wait in a batch at most, where the caller says nothing; as kombu's `Producer.batch`.
BATCH_SIZE = 1000


def send_many(signatures: Iterable[Any], *, producer: Any = None, batch_size: Any = BATCH_SIZE) -> list[Any]:
    """Publish tasks, groups or other signatures in batches; return their results, in their order.

    A batch is one round trip, and one script call for up to 100 messages of a queue. Delayed, expiring and deduplicated tasks are
    published one by one, and so are those of queues with limits. With kombu 5.6, which has no batches, all are.

    Args:
        signatures: such as `add.s(1, 2)`; a generator is not read at once.
        producer: publishes them; without one, a producer of each task's app does.
        batch_size: how many messages wait at most, before they are sent.

    Raises:
        OptionError: `batch_size` is no whole number from 1.
        InvalidArgument: one of `signatures` is none; those before it may be published.
        kombu.exceptions.BatchPublishError: some of the messages are not published; the text says how many, its cause why.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"argument 'batch_size' of send_many is {batch_size!r}; allowed is a whole number from 1")
    publishers: dict[Any, Any] = {}
    with ExitStack() as batches:

        def publisher_for(app: Any) -> Any:
            key = None if producer is not None else app
            if key not in publishers:
                publisher = publishers[key] = batches.enter_context(app.producer_or_acquire(producer))
                if hasattr(publisher, "batch"):
                    batches.enter_context(publisher.batch(max_size=batch_size))
            return publishers[key]

        return [signature.apply_async(producer=publisher_for(signature.app)) for signature in map(_checked, signatures)]


def _checked(signature: Any) -> Any:
    if not isinstance(signature, Signature):
        raise InvalidArgument(f"send_many was given {signature!r:.100}; allowed are signatures, such as add.s(1, 2)")
    return signature
