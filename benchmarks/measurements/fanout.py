"""A fanout exchange with 10 subscribers, each a process of its own: messages delivered in all per second."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from kombu import Exchange, Producer, Queue

from benchmarks.bench import BODY, Bench, Figures, MeasurementError, consuming
from benchmarks.journal import READY
from benchmarks.meters import cpu_of

SUBSCRIBERS = 10
TIMEOUT_S = 120.0
EXCHANGE = Exchange("bench.fanout", type="fanout", durable=False, auto_delete=True)


def run(bench: Bench) -> Figures:
    """From the first publish until the last subscriber has everything."""
    count = bench.size(500, 2_000)
    journal = bench.journal()
    context = multiprocessing.get_context("fork")
    subscribers = [context.Process(target=_subscribe, args=(bench, number, count), daemon=True) for number in range(SUBSCRIBERS)]
    for subscriber in subscribers:
        subscriber.start()
    if not journal.wait(SUBSCRIBERS, 60):
        raise MeasurementError("not all subscribers started")
    time.sleep(1.5)  # kombu's redis transport subscribes in its first drain_events
    meter = bench.meter()
    with bench.connect() as connection:
        channel = connection.channel()
        EXCHANGE(channel).declare()
        publish = Producer(channel, exchange=EXCHANGE, serializer="json").publish
        pids = [subscriber.pid or 0 for subscriber in subscribers]
        cpu_before = sum(map(cpu_of, pids))
        began = time.time()
        meter.start()
        for _ in range(count):
            publish(BODY, routing_key="")
        complete = journal.wait(2 * SUBSCRIBERS, TIMEOUT_S)
        meter.stop()
    ended = journal.entries()[SUBSCRIBERS:]
    for subscriber in subscribers:
        subscriber.join(10)
    delivered = sum(entry.seq for entry in ended)
    if not complete or delivered != count * SUBSCRIBERS:
        raise MeasurementError(f"{delivered} of {count * SUBSCRIBERS} deliveries within {TIMEOUT_S:g} s")
    figures = {
        "fanout.rate": delivered / (max(entry.at for entry in ended) - began),
        "fanout.client_us": (sum(entry.cpu_s for entry in ended) - cpu_before) / delivered * 1e6,
    }
    if meter.server_s is not None:
        figures["fanout.server_us"] = meter.server_s / delivered * 1e6
    return figures


def _subscribe(bench: Bench, number: int, count: int) -> None:
    """Two records: ready; and, at the end, how many arrived."""
    journal = bench.journal()
    received = 0

    def on_message(_: Any) -> None:
        nonlocal received
        received += 1

    queue = Queue(f"bench.fanout.{number}", EXCHANGE, durable=False, auto_delete=True, no_ack=True)
    give_up_at = time.monotonic() + TIMEOUT_S
    with bench.connect() as connection, consuming(connection, [queue], on_message, 0):
        journal.note(READY)
        while received < count and time.monotonic() < give_up_at:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue
        journal.note(received)
