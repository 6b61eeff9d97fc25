"""The short form of tests/chaos/spark: the JVM of a running ingest is killed, and the next one goes on."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import ingest, tables
from tests.support.event_streams import add_events, lives
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
        *("ingest", "--url", broker_url, "--root", str(root), "--batch", "500", "--interval", "0.1", "--reader", "r", "--trim")
    )
    job.until(lambda: job.said.count("batch ") >= 2)
    assert job.kill(JVM), job.said
    assert "batch 12" not in job.said, "the kill came too late"

    source = {"url": broker_url, "readerName": "r", "trimOnCommit": "true"}
    ingest.start(spark, root, source, once=True).awaitTermination()

    rows = tables.read(spark, root, "events")
    assert rows.count() == rows.select("n").distinct().count() == count
    with EventLog(broker_url) as log:
        assert redis_client.xlen(log.keys.queue("celery").events) <= 100
