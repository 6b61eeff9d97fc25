"""Spark reads events as they are: batch and stream, limits, losses, retention."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from celery_redis_plus.errors import EventsLost, InvalidArgument, OptionError
from celery_redis_plus.event_log import readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import ingest
from celery_redis_plus.spark.manifest import files
from celery_redis_plus.spark.read_plan import Planner
from celery_redis_plus.spark.source import StreamReader
from celery_redis_plus.spark.source_options import SourceOptions
from tests.support.event_streams import START_MS, add_events, end_log, lives
from tests.support.streaming import finish

LIVES = lives(2000)


@pytest.fixture
def stored(redis_client):
    """Two queues with events; return how many."""
    return add_events(redis_client, "celery", LIVES) + add_events(redis_client, "mail", LIVES[:1000])


@pytest.fixture
def stream(spark, broker_url, tmp_path):
    """Stream into Parquet until everything is read: `stream(maxOffsetsPerTrigger=500)`; return the query."""

    def run(sink="out", **options):
        frame = (
            spark.readStream.format("celery_redis").options(url=broker_url, **{"startingOffsets": "earliest"} | options).load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / sink))
            .option("checkpointLocation", str(tmp_path / f"{sink}.checkpoint"))
            .trigger(availableNow=True)
        )
        return finish(writer.start)

    return run


def test_a_batch_has_every_event_with_its_types(read, stored):
    frame = read().where("queue = 'celery'")

    assert frame.count() == len(LIVES)
    published = frame.where("event = 'published'")
    first = published.orderBy("n").first()
    assert (first.task_id, first.task, first.priority) == (LIVES[0].task_id, LIVES[0].task, LIVES[0].priority)
    assert int(first.ts.timestamp() * 1000) == LIVES[0].ts // 1000
    assert published.where("published_at != date_trunc('MILLISECOND', ts)").count() == 0


def test_a_micro_batch_waits_for_events_but_not_for_ever(redis_client, broker_url, monkeypatch):
    add_events(redis_client, "celery", LIVES[:10])
    now = [100.0]
    monkeypatch.setattr("celery_redis_plus.spark.source.time.monotonic", lambda: now[0])
    given = {"url": broker_url, "startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"}
    reader = StreamReader(SourceOptions.from_mapping(given))
    limit = reader.getDefaultReadLimit()

    first = reader.latestOffset({}, limit)
    assert first == {"celery": f"{START_MS}-10"}, "the first micro-batch does not wait"
    add_events(redis_client, "celery", LIVES[:4])
    assert reader.latestOffset(first, limit) == first
    now[0] += 120
    later = reader.latestOffset(first, limit)
    assert later == {"celery": f"{START_MS}-14"}
    add_events(redis_client, "celery", LIVES[:4])
    assert reader.latestOffset(later, limit) == later
    add_events(redis_client, "celery", LIVES[:1])
    assert reader.latestOffset(later, limit) == {"celery": f"{START_MS}-19"}
    reader.stop()


def test_a_micro_batch_has_about_so_many_bytes(redis_client, broker_url):
    add_events(redis_client, "big", [event for event in LIVES if event.event == "published"][:200], payload=bytes(10_000))
    add_events(redis_client, "small", LIVES[:200])

    def first(**options):
        given = {"url": broker_url, "startingOffsets": "earliest", **options}
        reader = StreamReader(SourceOptions.from_mapping(given))
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        reader.stop()
        return {queue: int(position.partition("-")[2]) for queue, position in end.items()}

    found = first(maxBytesPerTrigger="500000")
    assert 30 <= found["big"] <= 60, "10 kB each"
    assert first(maxBytesPerTrigger="500000", maxOffsetsPerTrigger="10") == {"big": 5, "small": 5}
    assert first(maxBytesPerTrigger="500000", queues="small") == {"small": 200}
    assert sum(first(maxBytesPerTrigger="1").values()) <= 2, "one at least"


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("1.5 s", 1.5), ("250ms", 0.25), ("90", 90), ("2h", 7200), ("1d", 86400)]
)
def test_a_duration_has_a_unit(text, seconds):
    assert SourceOptions.from_mapping({"url": "redis://h", "maxTriggerDelay": text}).max_trigger_delay == seconds


@pytest.mark.parametrize("text", ["", "m", "-1s", "1 week", "nan"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(OptionError, match=r"maxTriggerDelay.*allowed: seconds, or a number with a unit"):
        SourceOptions.from_mapping({"url": "redis://h", "maxTriggerDelay": text})


def test_events_that_are_trimmed_while_a_task_reads_are_noted_with_the_reader(redis_client, broker_url, stored):
    options = {"url": broker_url, "queues": "celery", "readerName": "x", "failOnDataLoss": "false", "startingOffsets": "earliest"}
    reader = StreamReader(SourceOptions.from_mapping(options))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    planned = reader.partitions(start, end)
    with EventLog(broker_url) as log:
        redis_client.xtrim(log.keys.queue("celery").events, maxlen=100, approximate=False)

        read = sum(batch.num_rows for part in planned for batch in reader.read(part))
        reader.commit(end)

        assert read == 100
        assert readers.readers(log, ["celery"])[0].lost == len(LIVES) - 100
    reader.stop()


def test_a_batch_reads_between_offsets(read, stored):
    frame = read(
        startingOffsets=json.dumps({"celery": f"{START_MS}-10", "mail": -1}),
        endingOffsets=json.dumps({"celery": f"{START_MS}-30"}),
        minPartitions=3,
    )

    assert sorted(row.n for row in frame.select("n").collect()) == list(range(11, 31))
    assert frame.rdd.getNumPartitions() >= 3


def test_tasks_take_events_of_many_queues_and_are_as_few_as_the_options_allow(broker_url, redis_client):
    total = sum(add_events(redis_client, f"tenant{number}", LIVES[: 10 + number]) for number in range(50))
    cases = [({}, 1), ({"maxRecordsPerPartition": 400}, math.ceil(total / 400)), ({"minPartitions": 5}, 5)]
    with EventLog(broker_url) as log:
        for options, tasks in cases:
            planner = Planner(log, SourceOptions.from_mapping({"url": broker_url, **options}))
            partitions = planner.partitions({}, planner.newest())
            assert len(partitions) == tasks
            sizes = [sum(part.count for part in partition) for partition in partitions]
            assert max(sizes) - min(sizes) <= tasks
            planned = [(part.queue, n) for partition in partitions for part in partition for n in range(part.low, part.high + 1)]
            assert len(planned) == len(set(planned)) == total


def test_a_micro_batch_over_many_queues_makes_one_file(spark, broker_url, redis_client, tmp_path):
    """200 queues made 200 files of 7 KB, and took 30 times as long."""
    total = sum(add_events(redis_client, f"tenant{number}", LIVES[:5]) for number in range(50))
    ingest.run_once(spark, tmp_path, {"url": broker_url})
    (file,) = files(tmp_path, "events")
    assert parquet.read_metadata(file).num_rows == total


def test_a_queue_whose_log_has_ended_leaves_the_offset_with_its_numbers(broker_url, redis_client):
    add_events(redis_client, "celery", LIVES[:100])
    add_events(redis_client, "old", LIVES[:100])
    with EventLog(broker_url) as log:
        planner = Planner(log, SourceOptions.from_mapping({"url": broker_url}))
        read = planner.newest()
        end_log(redis_client, log.keys, "old")
        assert planner.advance(read, None) == read, "its next events go on from there"
        assert planner.partitions(read, planner.advance(read, None)) == []

        redis_client.delete(log.keys.queue("old").events_meta)
        read = planner.advance(read, None)
        assert set(read) == {"celery"}
        add_events(redis_client, "old", LIVES[:10], epoch=START_MS + 5000)
        (part,) = planner.partitions(read, planner.newest())[0]
        assert (part.queue, part.low, part.high) == ("old", 1, 10)


def test_events_of_a_log_that_ended_unread_are_lost_with_a_word(broker_url, redis_client):
    add_events(redis_client, "celery", LIVES[:100])
    add_events(redis_client, "old", LIVES[:100])
    with EventLog(broker_url) as log:
        planner = Planner(log, SourceOptions.from_mapping({"url": broker_url}))
        start = planner.newest() | {"old": f"{START_MS}-60"}
        end_log(redis_client, log.keys, "old")
        with pytest.raises(EventsLost, match=f"queue 'old': 40 events, {START_MS}-61 to {START_MS}-100, were trimmed"):
            planner.partitions(start, planner.advance(start, None))
        planner = Planner(log, SourceOptions.from_mapping({"url": broker_url, "failOnDataLoss": "false"}))
        assert planner.partitions(start, planner.advance(start, None)) == []
        assert planner.lost == {"old": 40}


def test_a_batch_begins_at_a_time(read, stored):
    since = LIVES[500].ts // 1000

    frame = read(startingTimestamp=since, queues="celery")

    assert frame.count() == sum(event.ts // 1000 >= since for event in LIVES)


def test_filters_are_pushed_and_change_nothing_but_what_is_read(read, stored):
    middle = LIVES[3000].ts / 1e6

    def answer(**options):
        frame = read(**options).where("queue = 'celery' and event in ('claimed', 'acked')")
        return (
            frame.where(sf.col("ts") >= sf.timestamp_seconds(sf.lit(middle))).agg(sf.count("*"), sf.min("n"), sf.max("n")).first()
        )

    assert answer(pushFilters=True) == answer()
    assert answer()[0] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfset": "earliest"}, "did you mean startingOffsets"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"queues": "celery,unknown"}, "'unknown' has no events"),
        ({"prefix": "other:"}, "event_log=True"),
        ({"url": "redis://:secret@127.0.0.1:1/0"}, "urlEnv"),
        ({"url": "redis://127.0.0.1:1/0"}, "check that the server runs"),
    ],
)
def test_bad_input_is_told_in_words(spark, stored, broker_url, options, message):
    with pytest.raises(PySparkException, match=message) as caught:
        spark.read.format("celery_redis").options(**{"url": broker_url} | options).load().count()
    assert "secret" not in str(caught.value)


def test_a_stream_writes_each_event_once_and_goes_on_where_it_stopped(spark, stream, stored, redis_client, tmp_path):
    stream(maxOffsetsPerTrigger=2000)
    add_events(redis_client, "new", LIVES[:100])
    add_events(redis_client, "mail", LIVES[1000:1100])

    query = stream(maxOffsetsPerTrigger=2000)

    written = spark.read.parquet(str(tmp_path / "out"))
    assert written.count() == stored + 200
    assert written.select("queue", "epoch", "n").distinct().count() == stored + 200
    assert {row.queue for row in written.select("queue").distinct().collect()} == {"celery", "mail", "new"}
    assert query.exception() is None


def test_a_micro_batch_is_limited_and_progress_tells_the_lag(stream, stored):
    query = stream(maxOffsetsPerTrigger=3000)

    progress = [entry for entry in query.recentProgress if entry.numInputRows]
    assert all(entry.numInputRows <= 3000 + 2 for entry in progress)
    assert len(progress) <= -(-stored // 3000) + 1
    source = json.loads(progress[0].sources[0].json)
    newest, end = source["latestOffset"], source["endOffset"]
    lag = sum(int(newest[queue].split("-")[1]) - int(end[queue].split("-")[1]) for queue in newest)
    assert lag == stored - progress[0].numInputRows


def test_events_that_were_trimmed_before_they_were_read_stop_the_query(stream, stored, redis_client, broker_url):
    stream(maxOffsetsPerTrigger=100_000)
    added = add_events(redis_client, "celery", LIVES)
    with EventLog(broker_url) as log:
        redis_client.xtrim(log.keys.queue("celery").events, minid=f"{START_MS}-{len(LIVES) + 11}", approximate=False)

    with pytest.raises(PySparkException, match=rf"10 events, {START_MS}-{len(LIVES) + 1} to {START_MS}-{len(LIVES) + 10}"):
        stream(maxOffsetsPerTrigger=100_000)
    query = stream(failOnDataLoss=False)

    assert sum(entry.numInputRows for entry in query.recentProgress) == added - 10


def test_two_readers_of_different_speed_keep_what_the_slower_needs(stream, stored, redis_client, broker_url, spark, tmp_path):
    with EventLog(broker_url) as log:
        readers.commit(log, "slow", {"celery": (START_MS, 0), "mail": (START_MS, 0)}, trim=False)
        stream(sink="fast", readerName="fast", trimOnCommit=True, maxOffsetsPerTrigger=2500)
        assert redis_client.xlen(log.keys.queue("celery").events) + redis_client.xlen(log.keys.queue("mail").events) == stored

        stream(sink="slow", readerName="slow", trimOnCommit=True)

        assert spark.read.parquet(str(tmp_path / "slow")).count() == spark.read.parquet(str(tmp_path / "fast")).count() == stored
        assert {reader.behind for reader in readers.readers(log, ["celery", "mail"])} == {0}
        # Whole nodes of 100 entries are trimmed.
        assert redis_client.xlen(log.keys.queue("celery").events) <= 100


def test_a_period_is_bounded_by_times_and_each_queue_may_begin_at_its_own(stored, broker_url):
    """Without Spark, by the plan of the read."""
    start, middle, end = (LIVES[place].ts // 1000 for place in (300, 500, 900))
    with EventLog(broker_url) as log:

        def planned(**options):
            planner = Planner(log, SourceOptions.from_mapping({"url": broker_url, **options}))
            ranges = planner.event_ranges(planner.start("earliest"), planner.end())
            counts = Counter()
            for part in ranges:
                counts[part.queue] += part.count
            return counts

        def between(first, last):
            return sum(first <= event.ts // 1000 < last for event in LIVES)

        everything = planned()
        assert planned(startingTimestamp=str(start), endingTimestamp=str(end))["celery"] == between(start, end)
        assert planned(endingTimestamp=str(end), endingOffsets="latest")["celery"] == between(0, end)
        assert not planned(startingTimestamp=str(end), endingTimestamp=str(start))
        own = planned(startingOffsetsByTimestamp=json.dumps({"celery": middle}))
        assert own == everything | {"celery": between(middle, 1 << 62)}
        both = planned(startingTimestamp=str(1 << 50), startingOffsetsByTimestamp=json.dumps({"celery": middle}))
        assert both == Counter({"celery": own["celery"]})
        from_text = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
        assert planned(startingOffsetsByTimestamp=json.dumps({"celery": from_text})) == own
        with pytest.raises(InvalidArgument, match="offsets name queue 'gone', which is not read"):
            planned(startingOffsetsByTimestamp=json.dumps({"gone": middle}))
