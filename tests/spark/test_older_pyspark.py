"""PySpark 4.0 and 4.1 know no limits of a micro-batch, and say less to a source: here by their calls."""

from __future__ import annotations

import importlib.util
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from pyspark.sql import datasource

from celery_redis_plus.errors import EventsLost, InvalidArgument
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import older_pyspark, source
from celery_redis_plus.spark.source import StreamReader
from celery_redis_plus.spark.source_options import SourceOptions
from tests.support.event_streams import START_MS, add_events, end_log, lives

LIVES = lives(100)


@pytest.fixture
def older(monkeypatch):
    """The module as PySpark 4.0 makes it."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(datasource, "EqualTo")
    spec = importlib.util.spec_from_file_location("older_pyspark_of_4_0", older_pyspark.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(source, "HAS_LIMITS", module.HAS_LIMITS)
    return module


@pytest.fixture
def reader(broker_url):
    """Return a new stream reader, as after a restart."""

    def begin():
        return StreamReader(SourceOptions.from_mapping({"url": broker_url, "startingOffsets": "earliest"}))

    return begin


@pytest.mark.parametrize(
    ("name", "value", "since"),
    [
        ("maxOffsetsPerTrigger", "5", "4.2"),
        ("maxBytesPerTrigger", "5", "4.2"),
        ("minOffsetsPerTrigger", "5", "4.2"),
        ("pushFilters", "true", "4.1"),
    ],
)
def test_what_it_lacks_is_told_with_the_version_that_has_it(older, name, value, since):
    options = SourceOptions.from_mapping({"url": "redis://h", name: value})
    with pytest.raises(InvalidArgument, match=rf"option {name} needs PySpark {since} or later, here is .*; leave it out"):
        older.check_options(options)
    older_pyspark.check_options(options)
    older.check_options(SourceOptions.from_mapping({"url": "redis://h"}))


def test_a_micro_batch_has_all_that_is_new(older, redis_client, reader):
    add_events(redis_client, "celery", LIVES[:10])
    one = reader()
    assert older.most_rows(None) is None
    start = one.initialOffset()
    end = one.latestOffset()
    assert end == {"celery": f"{START_MS}-10"}
    add_events(redis_client, "mail", LIVES[:4])
    again = reader()
    later = again.latestOffset()
    assert later == end | {"mail": f"{START_MS}-4"}, "a restart knows no offset before"
    assert sum(part.count for planned in one.partitions(start, end) for part in planned.value) == 10
    assert [(part.queue, part.count) for planned in again.partitions(end, later) for part in planned.value] == [("mail", 4)]
    one.stop()
    again.stop()


@pytest.mark.usefixtures("older")
def test_a_log_that_ended_unread_before_a_restart_is_lost_with_a_word(redis_client, broker_url, reader):
    add_events(redis_client, "celery", LIVES[:10])
    add_events(redis_client, "old", LIVES[:100])
    one = reader()
    start = one.latestOffset() | {"old": f"{START_MS}-60"}
    one.stop()
    with EventLog(broker_url) as log:
        end_log(redis_client, log.keys, "old")
    again = reader()
    end = again.latestOffset()
    assert set(end) == {"celery"}
    with pytest.raises(EventsLost, match=f"queue 'old': 40 events, {START_MS}-61 to {START_MS}-100, were trimmed"):
        again.partitions(start, end)
    again.stop()
