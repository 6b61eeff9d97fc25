"""A fanout exchange with 1, 10 and 50 subscribers, each a process with a connection of its own: deliveries in all per second.

Processes and not channels, because that is what users have: a broadcast goes to workers. Consumers that ack, as kombu's do where
nothing else is said, and Celery's of `Broadcast` queues; and consumers without acks, as those of remote control and of events.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from kombu import Exchange, Producer, Queue

from benchmarks.bench import BODY, Bench, Figures, MeasurementError, consuming
from benchmarks.journal import READY
from benchmarks.meters import cpu_of

TIMEOUT_S = 120.0
EXCHANGE = Exchange("bench.fanout", type="fanout", durable=False, auto_delete=True)


def one(bench: Bench) -> Figures:
    """One subscriber without acks."""
    return _measure(bench, "fanout1", 1, bench.size(3_000, 10_000))


def ten(bench: Bench) -> Figures:
    """Ten subscribers without acks."""
    return _measure(bench, "fanout", 10, bench.size(1_000, 5_000))


def fifty(bench: Bench) -> Figures:
    """Fifty subscribers without acks."""
    return _measure(bench, "fanout50", 50, bench.size(400, 2_000))


def one_that_acks(bench: Bench) -> Figures:
    """One subscriber that acks."""
    return _measure(bench, "fanout1_acks", 1, bench.size(1_500, 5_000), acks=True)


def ten_that_ack(bench: Bench) -> Figures:
    """Ten subscribers that ack."""
    return _measure(bench, "fanout10_acks", 10, bench.size(500, 2_000), acks=True)


def fifty_that_ack(bench: Bench) -> Figures:
    """Fifty subscribers that ack."""
    return _measure(bench, "fanout50_acks", 50, bench.size(150, 700), acks=True)


def _measure(bench: Bench, name: str, size: int, count: int, *, acks: bool = False) -> Figures:
    """From the first publish until the last of `size` subscribers has all of `count` messages."""
    journal = bench.journal()
    context = multiprocessing.get_context("fork")
    subscribers = [context.Process(target=_subscribe, args=(bench, number, count, acks), daemon=True) for number in range(size)]
    for subscriber in subscribers:
        subscriber.start()
    if not journal.wait(size, 60):
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
        cpu_publishing = time.process_time()
        for _ in range(count):
            publish(BODY, routing_key="")
        cpu_publishing = time.process_time() - cpu_publishing
        complete = journal.wait(2 * size, TIMEOUT_S)
        meter.stop()
    ended = journal.entries()[size:]
    for subscriber in subscribers:
        subscriber.join(10)
    delivered = sum(entry.seq for entry in ended)
    if not complete or delivered != count * size:
        raise MeasurementError(f"{delivered} of {count * size} deliveries within {TIMEOUT_S:g} s")
    figures = {
        f"{name}.rate": delivered / (max(entry.at for entry in ended) - began),
        f"{name}.publish_us": cpu_publishing / count * 1e6,
        f"{name}.client_us": (sum(entry.cpu_s for entry in ended) - cpu_before) / delivered * 1e6,
    }
    if meter.server_s is not None:
        figures[f"{name}.server_us"] = meter.server_s / delivered * 1e6
    return figures


def _subscribe(bench: Bench, number: int, count: int, acks: bool) -> None:
    """Two records: ready; and, at the end, how many arrived."""
    journal = bench.journal()
    received = 0

    def on_message(message: Any) -> None:
        nonlocal received
        received += 1
        if acks:
            message.ack()

    queue = Queue(f"bench.fanout.{number}", EXCHANGE, durable=False, auto_delete=True, no_ack=not acks)
    give_up_at = time.monotonic() + TIMEOUT_S
    with bench.connect() as connection, consuming(connection, [queue], on_message, 0):
        journal.note(READY)
        while received < count and time.monotonic() < give_up_at:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue
        journal.note(received)
