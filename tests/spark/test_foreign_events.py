"""A queue whose keys of events somebody else has written is passed over, and read on once they are mended."""

from __future__ import annotations

import os
import sys
import threading

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyarrow import dataset
from pyspark.errors import PySparkException

from celery_redis_plus.errors import EventsLost, UnknownEventSchema, WrongKeyType
from celery_redis_plus.event_log import readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import ingest
from celery_redis_plus.spark.ingest_process import IngestProcess
from celery_redis_plus.spark.manifest import files
from celery_redis_plus.spark.read_plan import Planner
from celery_redis_plus.spark.service import Service, Source
from celery_redis_plus.spark.source import StreamReader
from celery_redis_plus.spark.source_options import SourceOptions
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.waiting import wait_until

LIVES = lives(20)
PATIENCE_S = 60


@pytest.fixture
def two_logs(redis_client):
    for queue in ("bad", "good"):
        add_events(redis_client, queue, LIVES)


def damage_key(kind):
    """Put another key where the queue's own one was, which comes back."""

    def damage(client):
        client.rename(f"{kind}:{{bad}}", "kept")
        client.set(f"{kind}:{{bad}}", "foreign")

    def mend(client):
        client.rename("kept", f"{kind}:{{bad}}")

    return pytest.param(damage, mend, id=kind)


def damage_field(field, value):
    def damage(client):
        client.hset("kept", field, client.hget("events_meta:{bad}", field) or "")
        client.hset("events_meta:{bad}", field, value)

    def mend(client):
        client.hset("events_meta:{bad}", field, client.hget("kept", field))

    return pytest.param(damage, mend, id=f"{field}={value}")


DAMAGES = [
    damage_key("events"),
    damage_key("events_meta"),
    damage_field("version", "x"),
    damage_field("version", "99"),
    damage_field("ended", "x"),
]


def planner_of(log, broker_url, **options):
    return Planner(log, SourceOptions.from_mapping({"url": broker_url, **options}))


def queues_in(partitions):
    return {part.queue: (part.low, part.high) for partition in partitions for part in partition}


@pytest.mark.parametrize(("damage", "mend"), DAMAGES)
def test_the_others_are_planned_and_it_goes_on_where_it_was(two_logs, redis_client, broker_url, caplog, damage, mend):
    count = len(LIVES)
    with EventLog(broker_url) as log:
        planner = planner_of(log, broker_url)
        start = planner.start("earliest")
        first = planner.advance(start, 10)
        damage(redis_client)
        second = planner.advance(first, None, goal=planner.newest())
        assert second == {"bad": first["bad"], "good": f"{START_MS}-{count}"}
        assert queues_in(planner.partitions(first, second)) == {"good": (6, count)}
        add_events(redis_client, "good", LIVES[:5])
        third = planner.advance(second, None)
        assert third["bad"] == first["bad"]
        assert planner.lag(third) == 0
        assert set(planner.foreign) == {"bad"}
        (line,) = (line for line in caplog.messages if "cannot be read, others are" in line)
        assert "queue 'bad'" in line

        mend(redis_client)
        fourth = planner.advance(third, None)
        assert queues_in(planner.partitions(third, fourth)) == {"bad": (6, count)}
        assert planner.foreign == {}


def test_planned_events_that_cannot_be_read_any_more_are_a_loss(two_logs, redis_client, broker_url):
    """The checkpoint has promised them: the query says so, and does not go past them in silence."""
    with EventLog(broker_url) as log:
        planner = planner_of(log, broker_url)
        start, end = planner.start("earliest"), planner.newest()
        redis_client.set("events:{bad}", "foreign")
        with pytest.raises(EventsLost, match=r"queue 'bad': its events up to .* cannot be read: .*TYPE"):
            planner.partitions(start, end)
        lossy = planner_of(log, broker_url, failOnDataLoss="false")
        assert queues_in(lossy.partitions(start, end)) == {"good": (1, len(LIVES))}


@pytest.mark.parametrize("options", [{"queues": "bad,good"}, {"startingOffsets": '{"bad": -2}'}, {"queues": "bad"}])
def test_who_begins_with_a_damaged_queue_by_its_name_is_told(two_logs, redis_client, broker_url, options):
    redis_client.hset("events_meta:{bad}", "version", 99)
    with EventLog(broker_url) as log, pytest.raises(UnknownEventSchema, match="queue 'bad'"):
        planner_of(log, broker_url, **options).start("earliest")


def test_nothing_that_can_be_read_is_an_error(two_logs, redis_client, broker_url):
    for queue in ("bad", "good"):
        redis_client.set(f"events:{{{queue}}}", "foreign")
    with EventLog(broker_url) as log, pytest.raises(WrongKeyType):
        planner_of(log, broker_url).newest()


def test_a_damaged_list_of_readers_stops_no_commit(two_logs, redis_client, broker_url):
    options = {"url": broker_url, "readerName": "r", "startingOffsets": "earliest", "trimOnCommit": "true"}
    reader = StreamReader(SourceOptions.from_mapping(options))
    start = reader.initialOffset()
    redis_client.set("events_readers:{bad}", "foreign")
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.commit(end)
    assert end == {"bad": "0-0", "good": f"{START_MS}-{len(LIVES)}"}
    with EventLog(broker_url) as log:
        assert readers.commit(log, "other", {"bad": (START_MS, 1), "good": (START_MS, 1)}, trim=False) == 0
        assert {known.name: known.behind for known in readers.readers(log, ["good"])} == {"other": len(LIVES) - 1, "r": 0}
        redis_client.delete("events_readers:{bad}")
        end = reader.latestOffset(end, reader.getDefaultReadLimit())
        reader.commit(end)
        assert [known.behind for known in readers.readers(log, ["bad"])] == [0]
    reader.stop()


def test_ingest_stores_the_others_and_then_the_mended_queue_once(spark, two_logs, redis_client, broker_url, tmp_path):
    def stored():
        table = dataset.dataset(list(map(str, files(tmp_path, "events")))).to_table(["queue", "n"]).to_pylist()
        return sorted((row["queue"], row["n"]) for row in table)

    ingest.run_once(spark, tmp_path, {"url": broker_url, "readerName": "r"})
    numbers = range(1, len(LIVES) + 1)
    add_events(redis_client, "bad", LIVES[:3])
    add_events(redis_client, "good", LIVES[:3])
    redis_client.rename("events:{bad}", "kept")
    redis_client.set("events:{bad}", "foreign")
    ingest.run_once(spark, tmp_path, {"url": broker_url, "readerName": "r"})
    more = range(1, len(LIVES) + 4)
    assert stored() == [("bad", n) for n in numbers] + [("good", n) for n in more]
    redis_client.rename("kept", "events:{bad}")
    ingest.run_once(spark, tmp_path, {"url": broker_url, "readerName": "r"})
    assert stored() == [(queue, n) for queue in ("bad", "good") for n in more]


def test_a_batch_reads_the_others_and_a_named_queue_says_what_is_wrong(read, two_logs, redis_client):
    redis_client.set("events:{bad}", "foreign")
    assert {row.queue for row in read().select("queue").distinct().collect()} == {"good"}
    with pytest.raises(PySparkException, match="WRONGTYPE"):
        read(queues="bad,good").count()


def test_the_service_tells_once_which_queue_it_cannot_read(two_logs, redis_client, broker_url, tmp_path):
    said: list[str] = []
    idle = IngestProcess((sys.executable, "-c", "import sys; sys.stdin.read()"), os.environ)
    service = Service(tmp_path, Source(broker_url, "", "*"), idle, fresh_s=0.1, say=said.append)
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    redis_client.set("events:{bad}", "foreign")
    thread.start()
    try:
        wait_until(lambda: service.health.unreadable == ("bad",), PATIENCE_S)
        assert service.health.lag == {"good": len(LIVES)}
        assert "cannot read the events of 'bad'" in service.health.line(0)
        assert "celery_redis_plus_spark_unreadable_queues 1\n" in service.health.metrics()
        add_events(redis_client, "good", LIVES[:1])
        wait_until(lambda: service.health.lag == {"good": len(LIVES) + 1}, PATIENCE_S)
        redis_client.delete("events:{bad}")
        wait_until(lambda: service.health.unreadable == (), PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    (line,) = (line for line in said if "cannot be read" in line)
    assert line.startswith("the events of 'bad' cannot be read, others are: ")
