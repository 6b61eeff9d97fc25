"""Reads a range of a queue's events as Arrow batches: the work of a Spark task, also usable without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from celery_redis_plus.errors import EventsLost
from celery_redis_plus.event_log.batches import batch
from celery_redis_plus.event_log.passed_over import PassedOver

if TYPE_CHECKING:
    import pyarrow as pa

    from celery_redis_plus.event_log.event_logs import EventLogs
    from celery_redis_plus.spark.read_plan import EventRange

logger = logging.getLogger(__name__)


def read_range(
    log: EventLogs,
    part: EventRange,
    *,
    fetch_size: int = 5000,
    fail_on_data_loss: bool = True,
    on_loss: Callable[[str, int], None] = lambda _queue, _lost: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of `part`, in order.

    With `fail_on_data_loss` off, `on_loss` is called with the queue and how many were trimmed after the read was planned.

    Raises:
        EventsLost: some were; not with `fail_on_data_loss` off.
        UnknownEventSchema: a later release wrote them.
    """
    found, passed_over = 0, PassedOver()
    for entries in log.chunks(part.queue, part.epoch, part.low, part.high, fetch_size):
        if entries:
            found += len(entries)
            events = batch(log.queue_of(part.queue), entries)
            passed_over.add(part.queue, len(entries) - events.num_rows)
            yield events
    wanted = part.count
    if found == wanted:
        return
    message = (
        f"queue {part.queue!r}: {wanted - found} of the events {part.epoch}-{part.low} to {part.epoch}-{part.high} were trimmed "
        "while they were read"
    )
    if fail_on_data_loss:
        raise EventsLost(f"{message}. Keep more (event_log_maxlen, event_log_max_age) or register a readerName")
    logger.warning("%s (failOnDataLoss=false)", message)
    on_loss(part.queue, wanted - found)
