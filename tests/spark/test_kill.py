"""The short form of tests/chaos/spark: an ingest whose JVM is killed, whose server restarts, and that is told to end."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import dataset, parquet

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.manifest import files
from tests.support.event_streams import add_events, lives
from tests.support.machine_time import machine_time
from tests.support.servers import new_server
from tests.support.spark_jobs import JVM, Job


@pytest.fixture
def start(tmp_path):
    jobs = []

    def run(*words):
        jobs.append(Job((sys.executable, "-P", "-m", "celery_redis_plus", "spark", *words), tmp_path / "job.log"))
        return jobs[-1]

    yield run
    for job in jobs:
        job.end()


def test_a_killed_ingest_loses_and_doubles_nothing(spark, start, redis_client, broker_url, tmp_path):
    count = add_events(redis_client, "celery", lives(3000))
    root = tmp_path / "tables"
    job = start(
        *("ingest", "--url", broker_url, "--root", str(root), "--batch", "500", "--interval", "0.1", "--reader", "r", "--trim"),
        *("--engine", "spark"),
    )
    job.until(lambda: job.said.count("batch ") >= 2)
    assert job.kill(JVM), job.said
    assert "batch 12" not in job.said, "the kill came too late"
    assert "Spark's Java process has ended" in job.said

    source = {"url": broker_url, "readerName": "r", "trimOnCommit": "true"}
    ingest.run_once(spark, root, source)

    rows = tables.read(spark, root, "events")
    assert rows.count() == rows.select("n").distinct().count() == count
    with EventLog(broker_url) as log:
        assert redis_client.xlen(log.keys.queue("celery").events) <= 100


@pytest.mark.weekly
def test_an_ingest_outlives_a_restart_of_the_server_and_ends_at_sigterm(start, tmp_path):
    events, root = lives(300), tmp_path / "tables"
    with new_server({"appendonly": "yes", "appendfsync": "always"}) as server:
        with server.client() as client:
            add_events(client, "celery", events[:500])
        job = start("ingest", "--url", server.url(), "--root", str(root), "--interval", "0.5", "--engine", "spark")
        job.until(lambda: "batch 0" in job.said)
        server.kill()
        job.until(lambda: "it starts again in 2 s" in job.said)
        server.restart()
        with server.client() as client:
            add_events(client, "celery", events[500:])
        job.until(lambda: "batch 1" in job.said)
        assert job.process.poll() is None, job.said

        job.process.send_signal(signal.SIGTERM)
        job.wait()
    assert "stopped; the next run goes on from here" in job.said
    assert sum(parquet.read_metadata(file).num_rows for file in files(root, "events")) == len(events)


def test_a_service_outlives_its_jvm_and_ends_within_ten_seconds(start, redis_client, broker_url, tmp_path):
    events, root = lives(600), tmp_path / "tables"
    add_events(redis_client, "celery", events[:700])
    job = start("run", "--url", broker_url, "--root", str(root), "--fresh", "1", "--listen", "127.0.0.1:0", "--engine", "spark")

    def rows():
        with suppress(TablesUnusable):
            return dataset.dataset(files(root, "events")).count_rows()
        return 0

    def whole(count):
        status = root / "status.json"
        return status.exists() and json.loads(status.read_text(encoding="utf-8"))["freshness_s"] == 0 and rows() == count

    job.until(lambda: whole(700))
    job.strike(JVM)
    job.until(lambda: "it starts again in 1 s" in job.said)
    add_events(redis_client, "celery", events[700:])
    job.until(lambda: whole(len(events)))
    assert job.process.poll() is None, job.said
    assert "Spark's Java process has ended" in job.said

    began = machine_time()
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 0, job.said
    assert machine_time() - began < 10
    job.wait()
    read = dataset.dataset(files(root, "messages")).to_table()
    assert sum(read.column("events").to_pylist()) == len(events)
    assert "/health" in job.said
