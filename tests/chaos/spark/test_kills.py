"""kill -9 of the driver, the JVM, a Python worker, an executor at random moments: nothing is lost and nothing doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import dataset

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.manifest import files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import INGEST_LOCK
from tests.chaos.spark.test_two_services import QUEUES, assert_as_the_model
from tests.spark.conftest import s3
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.spark_jobs import BOTH, DRIVER, EXECUTOR, JVM, WORKER

__all__ = ["s3"]

TARGETS = (DRIVER, JVM, BOTH)
#: How often each is killed in the full form while it aggregates; with `BOTH` it is 20 times the driver and 20 times the JVM.
KILLS_OF_AN_AGGREGATION = {DRIVER: 15, JVM: 15, BOTH: 5, WORKER: 20, EXECUTOR: 20}
#: From its start, for driver and JVM from the JVM's, to the end of the work, on a machine that has other work.
WORKS_S = {DRIVER: 12.0, JVM: 12.0, BOTH: 12.0, WORKER: 2.0, EXECUTOR: 6.0}
CLUSTER = "local-cluster[2,1,1024]"
_SETTINGS = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.task.maxFailures": "8"}
CLUSTER_CONF = [word for name, value in _SETTINGS.items() for word in ("--conf", f"{name}={value}")]
#: How long a job takes until it does something, and a little longer.
START_S = 20.0


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


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_tables_are_whole_when_an_aggregation_is_killed(  # noqa: PLR0917 - fixtures
    request, start_job, full, source, redis_client, broker_url, tmp_path, figures, place
):
    root = request.getfixturevalue("s3").url if place == "s3" else str(tmp_path / "tables")
    made, killed = lives(2000), Counter()
    left = Counter({what: times if full else 1 for what, times in KILLS_OF_AN_AGGREGATION.items()})
    store = opened(root)
    for part in (made[:3000], made[3000:]):
        for queue in QUEUES:
            add_events(redis_client, queue, part)
        with store.locked(INGEST_LOCK):
            ArrowIngest(store, {"url": broker_url, "maxOffsetsPerTrigger": 3000}).run(threading.Event(), print, once=True)
        # The first kill comes when the tables have the first part only.
        fold(store, most=1)
    while left := +left:
        what = source.choice(sorted(left))
        words = ("aggregate", "--engine", "spark", "--rebuild", "--root", root)
        job = start_job(*words, "--master", CLUSTER if what == EXECUTOR else "local[2,8]", *CLUSTER_CONF)
        job.until(lambda job=job, what=what: job.running(what) and job.running(JVM))
        time.sleep(source.uniform(0, WORKS_S[what]))
        if what in {WORKER, EXECUTOR}:
            # Spark runs the tasks again, elsewhere.
            hits = 0
            while hits < min(4, left[what]) and (there := job.running(what)):
                with suppress(ProcessLookupError):
                    os.kill(source.choice(there), signal.SIGKILL)
                hits += 1
                time.sleep(source.uniform(1, 3))
            job.wait()
        else:
            hits = job.kill(what)
        left[what] -= hits
        killed[what] += hits
        assert_as_the_model(root, made)
    start_job("aggregate", "--root", root).wait()
    assert assert_as_the_model(root, made) == 2 * len(made)
    assert "WRONG" not in start_job("check", "--engine", "arrow", "--root", root).wait()
    figures(f"{place}: kills of a running aggregation {dict(killed)}: tables as the model after each, check passes")
