"""kill -9 of an executor while it aggregates in an object store: Spark runs its tasks again elsewhere, the tables are whole."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import INGEST_LOCK
from tests.chaos.spark.test_two_services import QUEUES, assert_as_the_model
from tests.spark.conftest import s3
from tests.support.event_streams import add_events, lives

__all__ = ["s3"]

MASTER = "local-cluster[2,1,1024]"
#: From the start of an executor to the end of its tasks, on a machine that has other work.
WORKS_S = 6.0


def executors(job):
    found = []
    for pid in job.pids():
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_tables_are_whole_when_executors_are_killed(  # noqa: PLR0917 - fixtures
    start_job, s3, full, redis_client, broker_url, tmp_path, figures
):
    seed = random.randrange(10**6)
    source, made, killed = random.Random(seed), lives(4000), 0
    for queue in QUEUES:
        add_events(redis_client, queue, made)
    store = opened(s3.url)
    with store.locked(INGEST_LOCK):
        ArrowIngest(store, {"url": broker_url, "maxOffsetsPerTrigger": 6000}).run(threading.Event(), print, once=True)
    words = ("aggregate", "--engine", "spark", "--rebuild", "--master", MASTER, "--root", s3.url)
    # A task that was killed runs again; an executor that was killed is replaced.
    settings = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.task.maxFailures": "8"}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    for _ in range(20 if full else 2):
        job = start_job(*words, *conf)
        job.until(lambda job=job: executors(job))
        time.sleep(source.uniform(0, WORKS_S))
        if there := executors(job):
            os.kill(source.choice(there), signal.SIGKILL)
            killed += 1
        job.wait()
        assert assert_as_the_model(s3.url, made) == 2 * len(made)
    assert "WRONG" not in start_job("check", "--engine", "arrow", "--root", s3.url).wait()
    figures(f"s3, seed {seed}: {killed} kills of an executor, {2 * len(made):,} events, tables as the model after each")
