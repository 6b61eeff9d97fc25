"""Entries of an event stream that are no events, because somebody else wrote them, stop no reader: it passes over them."""

from __future__ import annotations

import json

import pytest

from celery_redis_plus.cli.main import main
from celery_redis_plus.event_log.tail import Tail
from celery_redis_plus.events import FIELD, VALUE, Event, encode
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(30)
TAG = LIVES[0].id
COLUMNS = len(VALUE)


def value(**columns):
    """An event's value with some columns as they are given."""
    texts = dict.fromkeys((column.name for column in VALUE), b"")
    texts |= {"event": b"acked", "ts": b"1", "id": TAG.encode()} | columns
    return b"\t".join(texts.values())


FOREIGN = [
    {"field": "value"}, {"a": "1", "b": "2", "v": encode(LIVES[0])}, {"": ""}, {b"\xff\x00": b"\xfe"},
    {FIELD: ""}, {FIELD: "text"}, {FIELD: b"\xff" * 50}, {FIELD: "\t" * (COLUMNS - 1)}, {FIELD: "acked\tnot ours"},
    {FIELD: "\t" * COLUMNS}, {FIELD: "\n"}, {FIELD: "\r\n" + "\t" * (COLUMNS - 1)}, {FIELD: json.dumps({"event": "acked"})},
    {FIELD: value(event=b"exploded")}, {FIELD: value(event=b"")}, {FIELD: value(ts=b"")},
    {FIELD: value(ts=b"9" * 30)}, {FIELD: value(ts=b"-5")}, {FIELD: value(ts=b"9000000000000000000")}, {FIELD: value(id=b"")},
]  # fmt: skip
#: Events of which a column holds no number, or one that is out of its range: that column is empty.
ODD = [
    value(claim=b"often"),
    value(eta=b"9" * 18),
    value(eta=b"-1"),
    value(delay=b"\xff"),
    value(body_size=b"1e9"),
    value(worker=b"\xff"),
    value(ts=b"soon"),
]


def fill(client):
    """Events, and between them what somebody else wrote and odd ones; return how many events there are."""
    events = "events:{celery}"
    add_events(client, "celery", LIVES[:20])
    for fields in FOREIGN:
        client.xadd(events, fields, id=f"{START_MS}-*")
    for odd in ODD:
        client.xadd(events, {FIELD: odd}, id=f"{START_MS}-*")
    add_events(client, "celery", LIVES[20:])
    return len(LIVES) + len(ODD)


@pytest.fixture
def count(redis_client):
    return fill(redis_client)


def lines(caplog):
    return [line for line in caplog.messages if "entries that are no events" in line]


def test_a_tail_shows_the_events(log, redis_client, count, caplog):
    tail = Tail(log, last=1000)
    assert len(tail.read()) == count
    assert len(lines(caplog)) == 1
    redis_client.xadd("events:{celery}", FOREIGN[0], id=f"{START_MS}-*")
    redis_client.xadd("events:{celery}", {FIELD: value(ts=b"7")}, id=f"{START_MS}-*")
    (found,) = tail.read()
    assert found.event == Event(event="acked", ts=7, id=TAG)
    assert len(lines(caplog)) == 1


def test_the_command_prints_all_events(redis_client, broker_url, count, capsys):
    assert main(["--broker", broker_url, "events", "tail", "--last", "1000", "--no-follow", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == count


def test_a_batch_has_the_events_with_their_numbers(log, redis_client, count):
    batches = pytest.importorskip("celery_redis_plus.event_log.batches")
    total = log.numberings(["celery"])["celery"].total
    for size in (1, 7, 1000):
        chunks = [chunk for chunk in log.chunks("celery", START_MS, 1, total, size) if chunk]
        rows = [row for chunk in chunks for row in batches.batch("celery", chunk).to_pylist()]
        assert [row["n"] for row in rows][:20] == list(range(1, 21))
        assert len(rows) == count
        assert [row["n"] for row in rows][20 : 20 + len(ODD)] == list(range(21 + len(FOREIGN), 21 + len(FOREIGN) + len(ODD)))


def test_the_reader_of_the_spark_source_goes_on(log, redis_client, count, caplog):
    partition_reader = pytest.importorskip("celery_redis_plus.spark.partition_reader")
    from celery_redis_plus.spark.read_plan import EventRange

    total = log.numberings(["celery"])["celery"].total
    found = partition_reader.read_range(log, EventRange("celery", START_MS, 1, total), fetch_size=10)
    assert sum(batch.num_rows for batch in found) == count
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_export_has_the_events(log, redis_client, count, tmp_path, kind):
    export = pytest.importorskip("celery_redis_plus.event_log.export").export
    pytest.importorskip("pyarrow")
    assert export(log, ["celery"], str(tmp_path / "events"), kind=kind) == count


def test_an_archive_moves_finished_messages(log, redis_client, count, tmp_path, caplog):
    pytest.importorskip("pyarrow")
    from celery_redis_plus.event_log.archiver import move_finished

    (moved,) = move_finished(log, ["celery"], tmp_path).values()
    assert (moved.passed_over, moved.events, moved.lost) == (len(FOREIGN), count, 0)
    assert len(lines(caplog)) == 1
    (again,) = move_finished(log, ["celery"], tmp_path).values()
    assert (again.passed_over, again.events) == (0, 0)


def test_a_time_is_found_among_them(log, redis_client, count):
    numbering = log.numberings(["celery"])["celery"]
    assert 0 <= log.first_after(numbering, LIVES[25].ts // 1000) <= numbering.total


def test_the_way_of_a_message_leaves_them_out(redis_client, broker_url, count):
    from celery_redis_plus.admin.broker_admin import BrokerAdmin

    foreign = {FIELD: TAG.encode() + b"\t" * 5}
    redis_client.xadd("events:{celery}", foreign, id=f"{START_MS}-*")
    with BrokerAdmin(broker_url) as admin:
        found = admin.messages.find("celery", TAG)
    assert found is None or {event.id for event in found.events} == {TAG}
