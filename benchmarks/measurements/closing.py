"""How long an idle consumer takes to cancel and close its channel and connection."""

from __future__ import annotations

import time
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Queue

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Figures


def run(bench: Bench) -> Figures:
    """The median of a few closings, each at another phase of any polling."""
    return {"close.s": median(_close(bench, number) for number in range(bench.size(2, 5)))}


def _close(bench: Bench, number: int) -> float:
    connection = bench.connect()
    channel = connection.channel()
    consumer = Consumer(channel, [Queue("bench.close")], on_message=_ack, prefetch_count=10)
    consumer.consume()
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.6 + 0.17 * number)  # at another phase of any polling each time
    began = time.perf_counter()
    consumer.cancel()
    channel.close()
    connection.release()
    return time.perf_counter() - began


def _ack(message: Any) -> None:
    message.ack()
