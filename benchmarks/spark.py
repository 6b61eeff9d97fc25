"""``python -m benchmarks.spark``: the Spark pipeline against a plain redis-py loop, and the aggregation against reading.

Prints the figures that the pipeline must reach, each with what it was measured against in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.machine import describe
from celery_redis_plus import events
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.partition_reader import read_range
from celery_redis_plus.spark.read_plan import Planner
from celery_redis_plus.spark.session import session
from celery_redis_plus.spark.source_options import SourceOptions
from celery_redis_plus.testing.server import EmbeddedServer
from tests.support.event_streams import add_events, lives

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

QUEUES = ("first", "second", "third", "fourth")
#: Messages -> events, with the lives that `event_streams` makes up.
EVENTS_A_MESSAGE = 3.26


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="after one to warm up; the median of their ratios counts"
    )
    arguments = parser.parse_args()
    spark = session("benchmark", config={"spark.log.level": "OFF", "spark.driver.memory": "2g"})
    with EmbeddedServer() as server, server.client() as client, tempfile.TemporaryDirectory() as folder:
        print(", ".join(f"{name} {value}" for name, value in describe(server.url().partition("//")[2].partition("/")[0]).items()))
        count = fill(client, arguments.events)
        print(f"{count:,} events in {len(QUEUES)} queues; {memory_an_event(client):.0f} bytes an event in Redis")
        measure(spark, server.url(), client, Path(folder), count, arguments.rounds)
    spark.stop()


def fill(client: redis.Redis, count: int) -> int:
    """Write the events twice: packed as the broker does, and with a field a column for the plain loop."""
    total = 0
    for number, queue in enumerate(QUEUES):
        made = lives(round(count / len(QUEUES) / EVENTS_A_MESSAGE), seed=number, queue_id=str(number))
        total += add_events(client, queue, made)
        pipeline = client.pipeline(transaction=False)
        for place, event in enumerate(made, 1):
            pipeline.xadd(f"plain:{queue}", {name: getattr(event, name) or "" for name in PLAIN_FIELDS})
            if place % 5000 == 0:
                pipeline.execute()
        pipeline.execute()
    return total


PLAIN_FIELDS = tuple(column.name for column in events.PACKED)


def memory_an_event(client: redis.Redis) -> float:
    """Return bytes an event, of the packed streams."""
    keys = [Keys().queue(queue).events for queue in QUEUES]
    return sum(client.memory_usage(key, samples=0) or 0 for key in keys) / sum(client.xlen(key) for key in keys)


def measure(spark: SparkSession, url: str, client: redis.Redis, folder: Path, count: int, rounds: int) -> None:
    """Run every measurement in turn, `rounds` times after a first one that warms Java up, and print the medians of their ratios.

    What runs beside it slows the two sides of a round's ratio alike; the best of each side may be of different rounds.
    """
    read = spark.read.format("celery_redis").options(url=url)
    taken: list[dict[str, float]] = []
    for number in range(rounds + 1):
        root = folder / f"tables{number}"

        def stream(root: Path = root) -> None:
            ingest.start(spark, root, {"url": url}, once=True).awaitTermination()

        measured: dict[str, Callable[[], Any]] = {
            "plain": lambda: plain_loop(client),
            "reader": lambda: read_without_spark(url),
            "batch": lambda: discard(read.load()),
            "stream": stream,
            "parquet": lambda root=root: discard(tables.read(spark, root, "events")),
            "aggregate": lambda root=root: tables.aggregate(spark, root),
        }
        taken.append({})
        for name, run in measured.items():
            begun = time.perf_counter()
            run()
            seconds = taken[-1][name] = time.perf_counter() - begun
            label = f"round {number}" if number else "warm-up"
            print(f"  {label}: {name:<8} {seconds:6.2f} s  {count / seconds / 1000:6.0f} k events/s", flush=True)
    warm = taken[1:]
    verdict("batch read / plain XRANGE loop", [each["plain"] / each["batch"] for each in warm], 1.5)
    verdict("reader without Spark / plain XRANGE loop", [each["plain"] / each["reader"] for each in warm], 2.0)
    verdict("availableNow to Parquet / plain XRANGE loop", [each["plain"] / each["stream"] for each in warm], 0.5)
    verdict("aggregate / reading the same Parquet", [each["aggregate"] / each["parquet"] for each in warm], 10.0, at_most=True)


def verdict(what: str, ratios: list[float], bound: float, *, at_most: bool = False) -> None:
    """Print the median of the rounds' ratios beside what it must be."""
    ratio = median(ratios)
    reached = ratio <= bound if at_most else ratio >= bound
    rounds = ", ".join(f"{each:.2f}" for each in ratios)
    said = "reached" if reached else "NOT REACHED"
    print(f"{what}: {ratio:.2f} (rounds {rounds}; must be {'<=' if at_most else '>='} {bound:g}): {said}")


def plain_loop(client: redis.Redis) -> None:
    """Read all events as redis-py's documentation does."""
    for queue in QUEUES:
        last = "-"
        while entries := client.xrange(f"plain:{queue}", min=last, count=1000):
            last = f"({entries[-1][0].decode()}"


def read_without_spark(url: str) -> None:
    """Read all events into Arrow, in one process."""
    options = SourceOptions.from_mapping({"url": url})
    with EventLog(url) as log:
        planner = Planner(log, options)
        for part in planner.event_ranges(planner.start("earliest"), planner.end()):
            for _ in read_range(log, part):
                pass


def discard(frame: Any) -> None:
    """Read every row and column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
