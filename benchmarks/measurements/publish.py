"""Publish 1 KB JSON bodies with a held producer, each confirmed by the server's reply."""

from __future__ import annotations

from kombu import Producer, Queue

from benchmarks.bench import BODY, Bench, Figures, MeasurementError, size_of

QUEUE = "bench.publish"
WARM_UP = 200


def run(bench: Bench) -> Figures:
    """Publish in a loop and check that all arrived."""
    count = bench.size(2_000, 3_000)
    with bench.connect() as connection:
        channel = connection.channel()
        queue = Queue(QUEUE)(channel)
        queue.declare()
        publish = Producer(channel).publish
        for _ in range(WARM_UP):
            publish(BODY, routing_key=QUEUE, exchange="", serializer="json")
        meter = bench.meter()
        meter.start()
        for _ in range(count):
            publish(BODY, routing_key=QUEUE, exchange="", serializer="json")
        meter.stop()
        arrived = size_of(connection, QUEUE)
        queue.purge()
        queue.delete()
    if arrived != count + WARM_UP:
        raise MeasurementError(f"published {count + WARM_UP} messages, {arrived} are in the queue")
    return meter.figures("publish", count)
