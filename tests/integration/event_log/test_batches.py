"""Entries become typed columns: the same as Python's own decoder says."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("numpy", reason="needs the extra `parquet`")
pytest.importorskip("pyarrow", reason="needs the extra `parquet`")

from celery_redis_plus.errors import UnknownEventSchema
from celery_redis_plus.event_log import batches
from celery_redis_plus.events import Event
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(200)
TAG = LIVES[0].id


def read(log, queue="celery"):
    total = log.numberings([queue])[queue].total
    return [row for chunk in log.chunks(queue, START_MS, 1, total, 64) for row in batches.batch(queue, chunk).to_pylist()]


def test_every_column_is_what_the_plain_decoder_says(log, redis_client):
    add_events(redis_client, "celery", LIVES)

    for n, (row, event) in enumerate(zip(read(log), LIVES, strict=True), 1):
        wanted = dataclasses.asdict(event) | {"queue": "celery", "epoch": START_MS, "n": n}
        times = {"ts": event.ts, "published_at": event.published_at * 1000, "eta": event.eta and event.eta * 1000}
        assert {name: value for name, value in row.items() if name not in times} == {
            **{name: value for name, value in wanted.items() if name not in times},
            "payload": None,
        }
        for name, microseconds in times.items():
            assert (None if row[name] is None else round(row[name].timestamp() * 1_000_000)) == microseconds


@pytest.mark.parametrize("eta", [None, 1_764_000_000_000])
def test_ordinary_events_are_parsed_together(log, redis_client, monkeypatch, eta):
    """One by one costs ten times as much; chunks in which no event has an eta were read so."""
    rows = [Event(event="published", ts=1, id=TAG, task="t", eta=eta), Event(event="claimed", ts=2, id=TAG, worker="w", claim=1)]
    add_events(redis_client, "celery", rows)
    one_by_one = []
    monkeypatch.setattr(batches.events, "read_entry", one_by_one.append)

    assert [row["event"] for row in read(log)] == ["published", "claimed"]
    assert one_by_one == []


def test_texts_with_separators_come_through(log, redis_client):
    odd = 'tab\there\nline "quoted" back\\slash\\n ż'
    add_events(redis_client, odd, [Event(event="claimed", ts=1, id=TAG, worker=odd, claim=1)])

    (row,) = read(log, odd)

    assert (row["queue"], row["worker"]) == (odd, odd)


def test_undecodable_bytes_are_replaced_and_do_not_stop_the_reading(log, redis_client):
    name = b"\xff".decode("utf-8", "surrogateescape")
    add_events(redis_client, "celery", [Event(event="claimed", ts=1, id=TAG, worker=name, claim=1)])

    assert read(log)[0]["worker"] == "\ufffd"


def test_the_payload_stands_beside_the_value(log, redis_client):
    add_events(redis_client, "celery", LIVES[:1], payload=b'{"headers":{}}\n\x00\xff')
    add_events(redis_client, "celery", [Event(event="acked", ts=1, id=TAG)])

    assert [row["payload"] for row in read(log)] == [b'{"headers":{}}\n\x00\xff', None]


def test_payloads_that_no_array_can_hold_have_a_type_that_can(log, redis_client, monkeypatch):
    """2 GiB together were a TypeError."""
    monkeypatch.setattr(batches, "MOST_BINARY_BYTES", 100)
    for payload, kind in ((b"x" * 100, "binary"), (b"x" * 101, "large_binary")):
        redis_client.flushdb()
        add_events(redis_client, "celery", LIVES[:1], payload=payload)
        (chunk,) = log.chunks("celery", START_MS, 1, 1, 64)
        found = batches.batch("celery", chunk)
        assert str(found.schema.field("payload").type) == kind
        assert found.column("payload").to_pylist() == [payload]


def test_an_id_that_is_none_of_ours_has_no_time(log, redis_client):
    add_events(redis_client, "celery", [Event(event="acked", ts=1, id="x"), Event(event="acked", ts=1, id="z" * 30)])

    assert [row["published_at"] for row in read(log)] == [None, None]


def test_an_entry_of_another_schema_version_is_refused(log, redis_client):
    add_events(redis_client, "celery", LIVES[:2])
    redis_client.xadd(log.keys.queue("celery").events, {"v2": "whatever"}, id=f"{START_MS}-*")

    with pytest.raises(UnknownEventSchema, match="Upgrade"):
        read(log)
