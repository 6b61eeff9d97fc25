"""What the broker's own scripts write goes the whole way: into tables, and back to the broker."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import kombu
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark import ingest, tables
from celery_redis_plus.spark.replay import Destination, replay
from tests.support.events import illegal_steps

BODIES = [f"body {number}" for number in range(40)]


@pytest.fixture
def consumed(broker_url):
    """Publish 40 messages into an archived queue; ack 20, reject 10, requeue 5 and leave them, leave 5."""
    options = {"event_log": True, "event_log_payload": True}
    with kombu.Connection(broker_url, transport_options=options) as connection, connection.SimpleQueue("work") as queue:
        for body in BODIES:
            queue.put(body, headers={"id": body, "task": "shop.bill"}, serializer="json")
        for number in range(30):
            message = queue.get(timeout=10)
            (message.ack if number < 20 else message.reject)()
        taken = [queue.get(timeout=10) for _ in range(5)]
        for message in taken:
            message.requeue()
    return broker_url


def test_real_events_are_aggregated_and_dead_letters_replayed_once(spark, consumed, tmp_path):
    root = tmp_path / "tables"
    ingest.run_once(spark, root, {"url": consumed})
    tables.aggregate(spark, root)

    states = {row.state: row["count"] for row in tables.read(spark, root, "messages").groupBy("state").count().collect()}
    assert states == {"COMPLETED": 20, "DEAD": 10, "PENDING": 10}
    paths = tables.read(spark, root, "events").orderBy("n").groupBy("id").agg({"event": "collect_list"}).collect()
    assert [illegal_steps(row[1]) for row in paths] == [[]] * 40

    destination = Destination(url=consumed, queue="again", name="first")
    dry = replay(spark, root, "state = 'DEAD'", destination, dry_run=True)
    assert (dry.selected, dry.without_payload, dry.sent) == (10, 0, 0)
    assert replay(spark, root, "state = 'DEAD'", destination).sent == 10
    assert replay(spark, root, "state = 'DEAD'", destination).sent == 0

    with kombu.Connection(consumed) as connection, connection.SimpleQueue("again") as queue:
        messages = [queue.get(timeout=10) for _ in range(10)]
        assert sorted(message.payload for message in messages) == sorted(BODIES[20:30])
        assert {message.headers["task"] for message in messages} == {"shop.bill"}
        assert queue.qsize() == 0
        for message in messages:
            message.ack()


def test_a_replay_takes_off_what_would_end_it_and_sends_no_empty_body(spark, broker_url, tmp_path):
    root = tmp_path / "tables"
    options = {"event_log": True, "event_log_payload": True}
    over = {"expires": "2020-01-01T00:00:00+00:00", "x-deduplication-id": "order 3", "x-deduplication-scope": "until-acked"}
    with kombu.Connection(broker_url, transport_options=options) as connection, connection.SimpleQueue("work") as queue:
        # The broker heeds `expires` of tasks only; this one stands for a task that was rejected before its time was over.
        queue.put("small", headers={"id": "small", **over}, serializer="json")
        queue.put("large" * 300_000, headers={"id": "large"}, serializer="json")
        for _ in range(2):
            queue.get(timeout=10).reject()
    ingest.run_once(spark, root, {"url": broker_url})
    tables.aggregate(spark, root)

    destination = Destination(url=broker_url, queue="again", name="first")
    dry = replay(spark, root, "state = 'DEAD'", destination, dry_run=True)
    assert (dry.selected, dry.without_payload) == (2, 1)
    assert replay(spark, root, "state = 'DEAD'", destination).sent == 1

    with kombu.Connection(broker_url) as connection, connection.SimpleQueue("again") as queue:
        message = queue.get(timeout=10)
        assert (message.payload, message.headers["expires"]) == ("small", None)
        assert over["x-deduplication-id"] not in message.headers.values()
        message.ack()
        assert replay(spark, root, "state = 'DEAD'", destination).sent == 0
        assert queue.qsize() == 0


def test_a_condition_that_cannot_be_understood_names_the_columns(spark, consumed, tmp_path):
    root = tmp_path / "tables"
    ingest.run_once(spark, root, {"url": consumed})
    tables.aggregate(spark, root)

    logged: list[logging.LogRecord] = []
    handler, spark_log = logging.Handler(), PySparkLogger.getLogger("SQLQueryContextLogger")
    handler.emit = logged.append
    spark_log.addHandler(handler)
    try:
        with pytest.raises(InvalidArgument, match=r"stat = 'DEAD'.*columns: date, queue"):
            replay(spark, root, "stat = 'DEAD'", Destination(url=consumed))
        assert not logged, "Spark logged Java's trace before the reason"
        with pytest.raises(AnalysisException):
            spark.sql("SELECT stat FROM range(1)")
        assert logged, "errors of others are logged as before"
    finally:
        spark_log.removeHandler(handler)
