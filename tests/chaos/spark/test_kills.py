"""kill -9 of the driver, the JVM or both at random moments: nothing is lost and nothing doubled, with trimming on."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow.compute as pc
from pyarrow import dataset

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark.manifest import files
from tests.spark.model import aggregate_in_python
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.spark_jobs import BOTH, DRIVER, JVM, WORKER

TARGETS = (DRIVER, JVM, BOTH)
#: How long a job takes until it does something, and a little longer.
START_S = 20.0
QUEUES = ("celery", "mail")


def survive_workers(job):
    """Kill the Python processes of a running ingest: it goes on by itself."""
    before = job.said.count("batch ")
    job.strike(WORKER)
    job.until(lambda: job.said.count("batch ") > before + 1)
    assert job.process.poll() is None, job.said[-2000:]


@pytest.fixture
def kills(full):
    return 10 if full else 2


@pytest.fixture
def source(figures):
    seed = random.randrange(10**6)
    figures(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def feed(redis_client, full):
    """Publish while the test runs; `feed()` stops it and returns the events by queue."""
    made = lives(20_000 if full else 8_000)
    added = dict.fromkeys(QUEUES, 0)
    stop = threading.Event()

    def run():
        for place in range(0, len(made), 400):
            for queue in QUEUES:
                part = made[place : place + 400]
                added[queue] += add_events(redis_client, queue, part)
            if stop.wait(0.5):
                return

    thread = threading.Thread(target=run)
    # The first ones are there before the first job looks.
    add_events(redis_client, "first", made[:1])
    thread.start()

    def finish():
        stop.set()
        thread.join()
        return {"first": made[:1], **{queue: made[: added[queue]] for queue in QUEUES}}

    yield finish
    finish()


def stored(root):
    """Return (queue, epoch, n) of every row of `events`."""
    try:
        found = dataset.dataset(files(root, "events")).to_table(columns=["queue", "epoch", "n"])
    except TablesUnusable:
        return []
    return list(zip(*(found.column(name).to_pylist() for name in ("queue", "epoch", "n")), strict=True))


def test_ingest_stores_each_event_once(  # noqa: PLR0917 - fixtures
    start_job, kills, source, feed, redis_client, broker_url, tmp_path, figures
):
    root = tmp_path / "tables"
    words = ("ingest", "--url", broker_url, "--root", str(root), "--trim")
    killed = Counter()
    in_flight = 0
    for number in range(kills):
        # Small ones, so that most kills come in the middle of one.
        job = start_job(*words, "--engine", "spark", "--batch", "1500", "--interval", "0.5")
        if number % 2 == 0:
            job.until(lambda job=job: "batch" in job.said)
            survive_workers(job)
            killed[WORKER] += 1
            time.sleep(source.uniform(0, 4))
        else:
            time.sleep(source.uniform(2, START_S))
        target = source.choice(TARGETS)
        assert job.kill(target), job.said[-2000:]
        killed[target] += 1
        checkpoint = root / "checkpoint" / "events"
        in_flight += len(list(checkpoint.glob("offsets/[0-9]*"))) > len(list(checkpoint.glob("commits/[0-9]*")))

    published = feed()
    # Without Spark, from where it was killed.
    start_job(*words, "--once").wait()

    rows = stored(root)
    wanted = {(queue, START_MS, n) for queue, events in published.items() for n in range(1, len(events) + 1)}
    assert len(rows) == len(set(rows)) == len(wanted)
    assert set(rows) == wanted
    with EventLog(broker_url) as log:
        left = sum(redis_client.xlen(log.keys.queue(queue).events) for queue in published)
    # Whole nodes of 100 entries go.
    assert left <= 100 * len(published)
    figures(
        f"{sum(killed.values())} kills {dict(killed)}, {in_flight} with a batch in flight: {len(rows):,} rows = distinct = "
        f"published; {left} left in Redis"
    )


def test_aggregate_leaves_whole_tables(  # noqa: PLR0917 - fixtures
    start_job, kills, source, redis_client, broker_url, tmp_path, figures
):
    made = lives(6000)
    add_events(redis_client, "celery", made[:8000])
    root = tmp_path / "tables"
    ingest = ("ingest", "--url", broker_url, "--root", str(root), "--once")
    start_job(*ingest).wait()
    start_job("aggregate", "--root", str(root)).wait()
    assert states(root) == states_of(made[:8000])
    add_events(redis_client, "celery", made[8000:])
    start_job(*ingest).wait()

    cut = 0
    for number in range(kills):
        before = len(list(root.glob("messages/v*")))
        job = start_job("aggregate", "--rebuild", "--root", str(root))
        if number % 2 == 0:
            job.until(lambda before=before: len(list(root.glob("messages/v*"))) > before)
            time.sleep(source.uniform(0, 3))
        else:
            time.sleep(source.uniform(2, START_S))
        cut += job.kill(source.choice(TARGETS))
        assert states(root) in (states_of(made[:8000]), states_of(made)), "a kill left something between two states"

    start_job("aggregate", "--root", str(root)).wait()
    assert states(root) == states_of(made)
    figures(f"{cut} of {kills} kills hit a running aggregation: tables whole after each, and right after the last")


def states(root):
    found = dataset.dataset(files(root, "messages")).to_table(columns=["state", "id"])
    assert pc.count_distinct(found.column("id")).as_py() == found.num_rows
    return Counter(found.column("state").to_pylist())


def states_of(events):
    return Counter(row["state"] for row in aggregate_in_python({"celery": events})["messages"].values())
