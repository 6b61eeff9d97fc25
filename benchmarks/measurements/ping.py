"""Latency on an idle queue: from before publish to the callback of a consumer in another process."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import Any

from kombu import Producer, Queue

from benchmarks.bench import Bench, Figures, MeasurementError, consuming
from benchmarks.journal import READY
from benchmarks.stats import percentile

QUEUE = "bench.ping"
STOP = -2


def run(bench: Bench) -> Figures:
    """One message at a time, with pauses in which the consumer falls asleep."""
    count = bench.size(60, 300)
    journal = bench.journal()
    consumer = multiprocessing.get_context("fork").Process(target=_consume, args=(bench,), daemon=True)
    consumer.start()
    if not journal.wait(1, 20):
        raise MeasurementError("the consumer did not start")
    pause = random.Random(7)
    with bench.connect() as connection:
        channel = connection.channel()
        publish = Producer(channel).publish
        for number in range(-10, count):
            # Uneven pauses: an even beat would meet a polling consumer at always the same phase.
            time.sleep(0.02 + pause.random() * 0.02)
            seq = number if number >= 0 else STOP - 1
            publish({"seq": seq, "sent": time.time()}, routing_key=QUEUE, exchange="", serializer="json")
        time.sleep(0.5)
        publish({"seq": STOP, "sent": 0.0}, routing_key=QUEUE, exchange="", serializer="json")
        consumer.join(20)
    late_ms = [(entry.at - entry.due) * 1000 for entry in journal.entries() if entry.seq >= 0]
    if len(late_ms) != count:
        raise MeasurementError(f"{len(late_ms)} of {count} messages arrived")
    return {"ping.p50_ms": percentile(late_ms, 50), "ping.p99_ms": percentile(late_ms, 99)}


def _consume(bench: Bench) -> None:
    journal = bench.journal()
    stopped = False

    def on_message(message: Any) -> None:
        nonlocal stopped
        body = message.payload
        journal.note(body["seq"], body["sent"])
        message.ack()
        stopped = body["seq"] == STOP

    with bench.connect() as connection, consuming(connection, [Queue(QUEUE)], on_message, 10):
        journal.note(READY)
        while not stopped:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue
