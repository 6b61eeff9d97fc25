"""`spark check` finds each kind of damage, and nothing in tables that are well."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow.compute as pc
from pyarrow import parquet

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import checks, ingest, job_arguments, leftovers, losses, tables
from celery_redis_plus.spark.forgetting import forget
from celery_redis_plus.spark.manifest import files
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.storage import COMMITTED
from tests.support.event_streams import START_MS, add_events, begin_epoch, lives

LIVES = lives(300)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def load(spark, root, broker_url):
    """Ingest and aggregate what there is."""

    def run():
        ingest.run_once(spark, root, {"url": broker_url})
        tables.aggregate(spark, root)

    return run


@pytest.fixture
def wrong(spark, root):
    """Check, with this process and with Spark's tasks; return what is wrong, as (check, subject, count)."""

    def run(**options):
        here, there = (
            [(found.check, found.subject, found.wrong) for found in checks.check(root, inspector, **options)]
            for inspector in (None, partial(tables.inspect, spark))
        )
        assert here == there
        return [found for found in here if found[2]]

    return run


def rewrite(path, change):
    """Replace a Parquet file by what `change` makes of its table."""
    table = change(parquet.read_table(path, partitioning=None))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    parquet.write_table(table, path)
    return table.num_rows


def only_file(root):
    (path,) = (root / "incoming").glob("*/*/*/*.parquet")
    return path


def test_what_a_failover_repeats_is_no_fault(root, load, wrong, redis_client):
    """The replica that took over lacked the ack, which had been read, and so the message was delivered again."""
    done = next(event.id for event in LIVES if event.event == "acked")
    life = [event for event in LIVES if event.id == done]
    add_events(redis_client, "celery", life)
    load()
    begin_epoch(redis_client, "celery", START_MS + 1000, life[-2])
    add_events(redis_client, "celery", life[-1:])
    load()
    assert wrong() == []
    add_events(redis_client, "celery", life[-1:])
    load()
    assert wrong(skip=["sums"]) == [("steps", "celery", 1)]


def test_tables_that_are_well_pass_and_the_findings_are_a_table(root, load, redis_client):
    add_events(redis_client, "celery", LIVES)
    add_events(redis_client, "mail", LIVES[:200])
    load()
    found = checks.check(root)
    assert [(finding.check, finding.wrong) for finding in found] == [(name, 0) for name in checks.CHECKS]
    assert parquet.read_table(files(root, "checks")[0]).num_rows == len(checks.CHECKS)
    # As Azure's store has it while it is written.
    (root / "checks.parquet").write_bytes(b"")
    assert Snapshot(root).checks() is None
    assert tuple(checks.CHECKS) == job_arguments.CHECK_NAMES
    assert leftovers.KEPT_S == job_arguments.KEPT_VERSIONS_S


def test_an_event_that_is_missing_or_twice_is_found(root, load, wrong, redis_client):
    add_events(redis_client, "celery", LIVES)
    load()
    path = only_file(root)
    rows = rewrite(path, lambda table: table.filter(pc.not_equal(table.column("n"), 10)))
    marker = path.parent.parent / COMMITTED
    assert wrong(skip=["steps", "sums"]) == [("files", str(marker.parent.relative_to(root / "incoming")), 1)]
    marker.write_text(json.dumps(json.loads(marker.read_text(encoding="utf-8")) | {"rows": rows}), encoding="utf-8")
    assert wrong(skip=["steps", "sums"]) == [("numbers", f"celery {START_MS}", 1)]
    assert ("sums", "events", 1) in wrong(skip=["steps"])


def test_known_losses_explain_gaps_and_are_told(root, load, wrong, redis_client):
    add_events(redis_client, "celery", LIVES)
    redis_client.xtrim(Keys("").queue("celery").events, maxlen=200, approximate=False)
    load()
    assert wrong() == [("losses", "celery", len(LIVES) - 200)]
    assert wrong(skip=["losses"]) == []


def test_entries_of_others_are_no_gap(root, load, wrong, redis_client):
    add_events(redis_client, "celery", LIVES[:100])
    redis_client.xadd(Keys("").queue("celery").events, {"somebody": "else"}, id=f"{START_MS}-*")
    add_events(redis_client, "celery", LIVES[100:])
    load()
    assert wrong() == []


def test_steps_that_are_impossible_are_found(root, load, wrong, redis_client):
    one = [event for event in LIVES if event.id == LIVES[0].id]
    assert one[-1].event == "acked"
    add_events(redis_client, "celery", [*LIVES[:1], *one, LIVES[-1]])
    load()
    assert ("steps", "celery", 1) in wrong()


def test_minutes_and_messages_that_differ_are_found(root, load, wrong, redis_client):
    add_events(redis_client, "celery", LIVES)
    load()
    for path in (root / "queues").glob("*/*/*.parquet"):
        table = parquet.read_table(path, partitioning=None)
        if table.num_rows:
            break
    published = pc.sum(table.column("published")).as_py()
    rewrite(path, lambda table: table.slice(1))
    ((check, subject, count), *_) = wrong(skip=["losses"])
    assert (check, subject) == ("sums", "published")
    assert 0 < count <= published


def test_a_file_that_is_gone_is_found_and_the_rest_not_said_to_hold(root, load, redis_client):
    add_events(redis_client, "celery", LIVES)
    load()
    path = only_file(root)
    path.unlink()
    (finding,) = checks.check(root)
    assert (finding.check, finding.subject) == ("files", str(path.relative_to(root)))


def test_old_events_are_found_where_an_age_is_given(root, load, wrong, redis_client):
    add_events(redis_client, "celery", LIVES)
    load()
    age = time.time() - max(event.ts for event in LIVES) / 1e6
    assert wrong(max_age_s=age + 60) == []
    assert wrong(max_age_s=age - 60) == [("age", "", 1)]


def test_an_unknown_check_is_refused(root):
    with pytest.raises(InvalidArgument, match="there is no check 'gaps'; checks: files, logs, numbers"):
        checks.check(root, skip=["gaps"])


def test_a_loss_without_events_behind_it_explains_no_gap_before(root, load, wrong, redis_client):
    """It may be at the end of what was read, where no number is missing yet."""
    add_events(redis_client, "celery", LIVES)
    load()
    (marker,) = (root / "incoming").glob(f"*/*/{COMMITTED}")
    loss = losses.Loss("celery", losses.TRIMMED, START_MS, len(LIVES) + 1, len(LIVES) + 5, 5, None, 1, 1)
    content = json.loads(marker.read_text(encoding="utf-8")) | {"losses": [asdict(loss)]}
    marker.write_text(json.dumps(content), encoding="utf-8")
    assert wrong(skip=["losses"]) == []


def test_a_check_that_was_not_made_says_so(root, load, redis_client):
    add_events(redis_client, "celery", LIVES)
    load()
    found = {finding.check: finding.word for finding in checks.check(root)}
    assert (found["age"], found["sums"]) == ("-", "ok")
    forget(root, "id IN (SELECT id FROM messages ORDER BY id LIMIT 5)")
    told = {finding.check: (finding.word, finding.detail) for finding in checks.check(root)}
    assert told["sums"] == ("-", "not checked: the minutes have counted the messages that were forgotten")
