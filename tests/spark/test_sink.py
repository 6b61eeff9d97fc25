"""Rows become tasks, each once, whatever is repeated; a real worker honours priority and eta."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery import Celery
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from celery_redis_plus import configure_app
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.sending import sending
from celery_redis_plus.spark.sink import Writer
from celery_redis_plus.spark.sink_options import SinkOptions
from celery_redis_plus.spark.sink_rows import task_message
from celery_redis_plus.stored_message import read_envelope

ROWS = 3000


@pytest.fixture
def app(broker_url):
    made = configure_app(Celery("sink", broker=broker_url, set_as_current=False))
    made.conf.worker_prefetch_multiplier = 1
    return made


@pytest.fixture
def write(broker_url):
    """Send a frame's rows: `write(frame, task="t", idColumn="id")`."""

    def run(frame, **options):
        frame.write.format("celery_task").mode("append").options(url=broker_url, **options).save()

    return run


@pytest.fixture
def waiting(app):
    """Take all messages that wait in a queue; return their headers and decoded bodies."""

    def take(queue="celery"):
        found = []
        with app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple, suppress(simple.Empty):
            while True:
                message = simple.get(timeout=2)
                found.append((message.headers, message.decode(), message.properties))
                message.ack()
        return found

    return take


def test_rows_are_sent_once_although_tasks_fail_and_batches_come_again(spark, write, waiting, tmp_path):
    marker = tmp_path / "failed"

    def fail_once(batches):
        for number, batch in enumerate(batches):
            yield batch
            if number == 3 and not marker.exists():
                marker.touch()
                raise RuntimeError("this Spark task fails in the middle")

    frame = spark.range(ROWS).selectExpr("id", "array(id, id * 2) as args").repartition(2)
    failing = frame.mapInPandas(fail_once, "id bigint, args array<bigint>")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    try:
        write(failing, task="shop.bill", idColumn="id", argsColumn="args")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    write(frame, task="shop.bill", idColumn="id", argsColumn="args")

    assert marker.exists()
    found = waiting()
    assert len(found) == ROWS
    assert len({headers["id"] for headers, _, _ in found}) == ROWS
    assert {tuple(body[0]) for _, body, _ in found} == {(n, n * 2) for n in range(ROWS)}


def test_a_stream_sends_its_rows_once_although_its_last_batch_is_replayed(spark, waiting, broker_url, tmp_path):
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    spark.range(100).selectExpr("id", "array(id) as args").write.parquet(str(source))

    def stream():
        rows = spark.readStream.schema("id bigint, args array<bigint>").parquet(str(source))
        writer = rows.writeStream.format("celery_task").option("url", broker_url).option("task", "t").option("idColumn", "id")
        query = (
            writer.option("argsColumn", "args").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    stream()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    stream()

    assert (checkpoint / "commits" / "0").exists(), "the batch was not replayed"
    assert sorted(body[0] for _, body, _ in waiting()) == [[n] for n in range(100)]


def test_another_sink_name_sends_the_same_rows_again(spark, write, waiting):
    frame = spark.range(10)
    write(frame, task="t", idColumn="id")
    write(frame, task="t", idColumn="id", sinkName="second")

    assert len(waiting()) == 20


def test_columns_say_task_queue_priority_eta_and_keyword_arguments(spark, write, waiting):
    eta = datetime.now(UTC) - timedelta(seconds=5)
    frame = spark.range(1).select(
        "id",
        sf.lit("a.b").alias("name"),
        sf.lit("mail").alias("where"),
        sf.lit(7).alias("rank"),
        sf.lit(eta).alias("start"),
        sf.lit('{"x": 1}').alias("kw"),
    )
    write(
        frame, taskColumn="name", queueColumn="where", priorityColumn="rank", etaColumn="start", kwargsColumn="kw", idColumn="id"
    )

    ((headers, body, properties),) = waiting("mail")
    assert (headers["task"], body[1], properties["priority"]) == ("a.b", {"x": 1}, 7)
    assert abs(datetime.fromisoformat(headers["eta"]) - eta) < timedelta(milliseconds=1)


def test_a_worker_runs_them_by_priority_and_not_before_their_eta(spark, write, app, start_worker, broker_url, redis_client):
    from tests.support.waiting import wait_until

    soon = datetime.now(UTC) + timedelta(seconds=10)
    frame = spark.range(20).select(
        sf.concat(sf.lit("sink:"), "id").alias("key"),
        (sf.col("id") % 10).cast("int").alias("rank"),
        sf.when(sf.col("id") == 19, sf.lit(soon)).alias("start"),
    )
    frame = frame.select("*", sf.array(sf.lit(broker_url), "key").alias("args"))
    write(frame, task="tests.spark.worker_app.note", idColumn="key", argsColumn="args", priorityColumn="rank", etaColumn="start")

    start_worker("tests.spark.worker_app", broker=broker_url, pool="solo")
    wait_until(lambda: redis_client.llen("notes") == 20, 60)

    notes = [note.decode().split(" ") for note in redis_client.lrange("notes", 0, -1)]
    assert len({key for key, _ in notes}) == 20
    ranks = [int(key.removeprefix("sink:")) % 10 for key, _ in notes[:19]]
    assert ranks == sorted(ranks, reverse=True)
    assert notes[-1][0] == "sink:19"
    assert float(notes[-1][1]) >= soon.timestamp() - 0.001
    assert time.time() >= soon.timestamp()


def test_columns_say_group_headers_countdown_and_expiry(spark, write, redis_client):
    """The zone of the executors' machine is none of them: a time without a zone is UTC."""
    frame = spark.sql(
        "select 1 as id, 'g' as team, "
        "named_struct('trace', 'abc', 'id', 'mine', 'x-deduplication-scope', 'until-acked') as more, "
        "90 as seconds, timestamp_ntz'2031-01-02 03:04:05' as ntz, timestamp'2031-01-02 03:04:05Z' as instant, "
        "'2031-01-02 03:04:05' as text"
    )
    before = datetime.now(UTC)
    write(
        frame, task="t", idColumn="id", groupColumn="team", headersColumn="more", countdownColumn="seconds", expiresColumn="ntz"
    )
    for column in ("ntz", "instant", "text"):
        write(frame, task="t", idColumn="id", etaColumn=column, queue=column, expiresColumn="seconds")

    def headers(queue):
        keys = Keys("").queue(queue)
        (tag,) = redis_client.zrange(keys.delayed, 0, -1)
        return read_envelope(redis_client.hget(keys.message + tag, "payload").partition(b"\n")[0])["headers"]

    found = headers("celery")
    assert (found["group"], found["trace"]) == ("g", "abc")
    assert found["id"] != "mine"
    assert "x-deduplication-scope" not in found
    assert found["expires"] == "2031-01-02T03:04:05+00:00"
    assert before <= datetime.fromisoformat(found["eta"]) - timedelta(seconds=90) <= datetime.now(UTC)
    for column in ("ntz", "instant", "text"):
        found = headers(column)
        assert found["eta"] == "2031-01-02T03:04:05+00:00"
        assert before <= datetime.fromisoformat(found["expires"]) - timedelta(seconds=90) <= datetime.now(UTC)


def test_times_in_an_hour_that_comes_twice_are_two(spark, write, waiting, broker_url):
    """Of a session in a zone with daylight saving, by the sink and by `sending`."""
    times = ["2026-10-25 00:30:00", "2026-10-25 01:30:00"]
    utc = [f"{time.replace(' ', 'T')}+00:00" for time in times]
    frame = spark.createDataFrame([(time,) for time in times], "text string").selectExpr("to_timestamp(concat(text, 'Z')) AS at")
    frame = frame.selectExpr("at", "array(at) AS args")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        options = {"task": "t", "idColumn": "at", "etaColumn": "at", "argsColumn": "args"}
        write(frame, **options)
        known = sending(frame, url=broker_url, **options).groupBy().sum().first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert tuple(known) == (2, 2), "the same rows have the same ids"
    found = waiting()
    assert sorted(headers["eta"] for headers, _, _ in found) == utc
    assert sorted(body[0][0] for _, body, _ in found) == utc


def test_rows_that_the_broker_knew_are_told(caplog, broker_url):
    schema = StructType([StructField("id", LongType())])
    writer = Writer(SinkOptions.from_mapping({"url": broker_url, "task": "t", "idColumn": "id"}), schema)
    for first in (0, 2):
        writer.commit([writer.write(iter([Row(id=number) for number in range(first, first + 4)])), None])
    assert [record.getMessage() for record in caplog.records if record.name.endswith("spark.sink")] == [
        "celery_task: 2 of 4 rows were not sent: the broker knew their ids"
    ]


def test_rows_that_the_broker_knew_are_in_the_progress_of_a_query(spark, waiting, broker_url, tmp_path):
    source = tmp_path / "rows"
    columns = "id", "array(id) as args", "map('x', id) as kw", "timestamp_ntz'2021-01-02 03:04:05' as start"
    spark.range(100).selectExpr(*columns).write.parquet(str(source))
    options = {"url": broker_url, "task": "t", "idColumn": "id", "argsColumn": "args", "kwargsColumn": "kw", "etaColumn": "start"}

    first = sending(spark.read.parquet(str(source)).where("id < 30"), **options).groupBy().sum().collect()
    rows = spark.readStream.schema(spark.read.parquet(str(source)).schema).parquet(str(source))
    writer = sending(rows, **options).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    assert [tuple(row) for row in first] == [(30, 0)]
    observed = [progress["observedMetrics"].get("celery_task") for progress in query.recentProgress]
    assert [(row["rows"], row["known"]) for row in observed if row] == [(100, 30)]
    found = waiting()
    assert sorted(body[0] for _, body, _ in found) == [[n] for n in range(100)]
    assert sorted(body[1]["x"] for _, body, _ in found) == list(range(100))
    assert {headers["eta"] for headers, _, _ in found} == {"2021-01-02T03:04:05+00:00"}
    with pytest.raises(OptionError, match="no column 'key'"):
        sending(rows, url=broker_url, task="t", idColumn="key")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        *(("priorityColumn", value, "a whole number from 0 to 255") for value in ("x", math.nan, 1.9, -1, 256, True)),
        *(("countdownColumn", value, "a number of seconds from now") for value in ("30", math.nan, 1e300, -math.inf)),
        *(("expiresColumn", value, "or a number of seconds from now") for value in (math.nan, 1e300, "soon", True)),
        *(("etaColumn", value, "a time, or a text") for value in ("soon", 7, "1969-12-31", datetime(2300, 1, 1, tzinfo=UTC))),
        *(("taskColumn", value, "a text that is not empty") for value in (7, "", None)),
        *(("queueColumn", value, "a text that is not empty") for value in (7, "", None)),
        ("groupColumn", {"k": 1}, "a text"),
        ("headersColumn", [1], "a dict, or JSON of one"),
    ],
)
def test_a_wrong_value_is_told_with_row_column_and_option(option, value, allowed):
    task = {} if option == "taskColumn" else {"task": "t"}
    options = SinkOptions.from_mapping({"url": "redis://nowhere", "idColumn": "key", option: "column", **task})
    with pytest.raises(InvalidArgument) as caught:
        task_message({"key": 41, "column": value}, options)
    words = str(caught.value)
    assert words.startswith(f"the row of id 41: column 'column' (option {option}) has {value!r}; allowed: ")
    assert allowed in words


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priorityColumn", Decimal(5)),
        ("priorityColumn", "5"),
        ("countdownColumn", Decimal("-0.5")),
        ("expiresColumn", datetime.max.replace(tzinfo=UTC)),
        ("etaColumn", ""),
        ("groupColumn", None),
    ],
)
def test_odd_values_that_mean_something_are_taken(option, value):
    options = SinkOptions.from_mapping({"url": "redis://nowhere", "idColumn": "key", "task": "t", option: "column"})
    _, _, _, headers, properties = task_message({"key": 41, "column": value}, options)
    assert properties.get("priority", 5) == 5
    assert headers["eta"] is None or datetime.fromisoformat(headers["eta"]) <= datetime.now(UTC)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sesame@h:1/0",
        "redis://h:1/0?password=sesame",
        "sentinel://a:1;b:2/0?master_name=m&sentinel_password=sesame",
        "rediss://h:1/0?ssl_keyfile=/k&ssl_password=sesame",
    ],
)
def test_a_password_anywhere_in_the_url_is_refused(url):
    with pytest.raises(OptionError, match="option url holds a password") as caught:
        SinkOptions.from_mapping({"url": url, "idColumn": "id", "task": "t"})
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "t"}, "idColumn is missing"),
        ({"task": "t", "idColumn": "id", "queue": ""}, "option queue is empty"),
        ({"task": "t", "idColumn": "id", "dedupTtl": "31557601"}, "option dedupTtl: '31557601' is not allowed"),
        ({"idColumn": "id"}, "either task"),
        ({"task": "t", "idColumn": "key"}, "no column 'key'"),
        ({"task": "t", "idColumn": "id", "argsColumn": "id"}, "allowed: a list"),
        ({"task": "t", "idColumn": "id", "queu": "x"}, "did you mean queue"),
        ({"task": "t", "idColumn": "id", "etaColumn": "id", "countdownColumn": "id"}, "not both"),
    ],
)
def test_bad_input_is_told_in_words(spark, write, options, message):
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1), **options)
