"""Publishes many tasks at once: `send_many`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain
from typing import Any

from celery_redis_plus.errors import OptionError

#: How many messages wait in a batch at most, where the caller says nothing; as kombu's `Producer.batch`.
BATCH_SIZE = 1000


def send_many(signatures: Iterable[Any], *, producer: Any = None, batch_size: Any = BATCH_SIZE) -> list[Any]:
    """Publish tasks, groups or other signatures in batches; return their results, in their order.

    A batch is one round trip, and one script call for up to 100 messages of a queue. Delayed, expiring and deduplicated tasks are
    published one by one, and so are those of queues with limits. With kombu 5.6, which has no batches, all are.

    Args:
        signatures: such as `add.s(1, 2)`; a generator is not read at once.
        producer: publishes them; without one, a producer of the app's pool does.
        batch_size: how many messages wait at most, before they are sent.

    Raises:
        OptionError: `batch_size` is no whole number from 1.
        kombu.exceptions.BatchPublishError: some of the messages are not published; the text says how many, its cause why.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"argument 'batch_size' of send_many is {batch_size!r}; allowed is a whole number from 1")
    waiting = iter(signatures)
    first = next(waiting, None)
    if first is None:
        return []
    with first.app.producer_or_acquire(producer) as publisher:
        batch = publisher.batch(max_size=batch_size) if hasattr(publisher, "batch") else nullcontext()
        with batch:
            return [signature.apply_async(producer=publisher) for signature in chain([first], waiting)]
