"""Tasks of all fates, run by workers of which one is killed: tables and report say what the tasks' own ledger says. No Java."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter

import kombu
import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

from celery import Celery
from pyarrow import dataset

from celery_redis_plus import configure_app
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.manifest import files
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.summaries import Period, summaries
from tests.chaos.spark.ledger_app import KINDS, RETRIES
from tests.support.waiting import wait_until

APP = "tests.chaos.spark.ledger_app"
QUEUES = ("celery", "größe")
#: What ends without running.
NEVER = {"expire", "revoke"}
STATE = dict.fromkeys(KINDS, "COMPLETED") | {"fail": "FAILED", "expire": "FAILED", "revoke": "FAILED", "reject": "DEAD"}
RAW = (b"\x00\xff no UTF-8", b"a\ttab", b"", b'{"broken": ')


@pytest.fixture
def publisher(broker_url):
    """Publish a task of a kind: `publisher(kind)`; return its id."""
    app = Celery("publisher", broker=broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"event_log": True, "event_log_payload": True}
    configure_app(app, revoke_removes=True)
    options = {
        "eta": {"countdown": 3},
        "expire": {"countdown": 30, "expires": 2},
        "revoke": {"countdown": 600},
        "large": {"kwargs": {"blob": "x" * 1_500_000}},
        "pickled": {"kwargs": {"blob": {1, (2, b"\xff")}}, "serializer": "pickle"},
    }

    def publish(kind):
        queue = random.choice(QUEUES)
        return app.send_task(f"ledger.{kind}", queue=queue, ignore_result=True, **options.get(kind, {})).id

    publish.app = app
    return publish


def told(redis_client):
    return [json.loads(row) for row in redis_client.lrange("ledger", 0, -1)]


def test_tables_and_report_say_what_the_ledger_says(  # noqa: PLR0917 - fixtures
    publisher, start_worker, broker_url, redis_client, tmp_path, full, figures
):
    count, root = 6000 if full else 300, tmp_path / "tables"
    of_kind = {kind: {publisher(kind) for _ in range(share * count // 100)} for kind, share in KINDS.items()}
    with kombu.Connection(broker_url, transport_options={"event_log": True}) as connection:
        producer = connection.Producer()
        for body in RAW:
            producer.publish(body, routing_key="raw", content_type="application/octet-stream", content_encoding="binary")
    start = {"broker": broker_url, "queues": QUEUES, "concurrency": 1}
    first, _ = start_worker(APP, **start), start_worker(APP, **start)
    wait_until(lambda: len({row[2] for row in told(redis_client)}) > count // 4, 600)
    first.kill()
    start_worker(APP, **start)
    for task_id in of_kind["revoke"]:
        publisher.app.control.revoke(task_id)
    running = set().union(*(ids for kind, ids in of_kind.items() if kind not in NEVER))

    def all_ended():
        left = sum(redis_client.zcard(place) for queue in QUEUES for place in (of(queue).ready, of(queue).delayed))
        return not left and {row[2] for row in told(redis_client) if row[0] == "end"} >= running

    of = Keys("").queue
    wait_until(all_ended, 1800)
    ledger = told(redis_client)
    with kombu.Connection(broker_url) as connection:
        unacked = [connection.default_channel.queue_sizes(queue) for queue in QUEUES]
        wait_until(lambda: not any(connection.default_channel.queue_sizes(queue).unacked for queue in QUEUES), 120, str(unacked))

    ArrowIngest(root, {"url": broker_url, "readerName": "ledger"}).run(threading.Event(), print, once=True)
    fold(root)
    assert [finding for finding in check(root) if finding.wrong] == []
    rows = dataset.dataset(files(root, "messages")).to_table().to_pylist()
    tasks = [row for row in rows if row["queue"] != "raw"]
    written = sum(redis_client.xlen(of(queue).events) for queue in (*QUEUES, "raw"))
    assert dataset.dataset(files(root, "events")).count_rows() == written
    assert [row["state"] for row in rows if row["queue"] == "raw"] == ["PENDING"] * len(RAW)
    wanted = {(task_id, 0): STATE[kind] for kind, ids in of_kind.items() for task_id in ids}
    for task_id in of_kind["retry"]:
        wanted |= {(task_id, number): "RETRIED" for number in range(RETRIES)} | {(task_id, RETRIES): "COMPLETED"}
    assert {(row["task_id"], row["retries"]): row["state"] for row in tasks} == wanted
    assert len(tasks) == len(wanted)
    assert all(row["complete"] for row in rows)
    started = Counter(row[4] for row in ledger if row[0] == "start")
    assert all(row["attempts"] >= started[row["id"]] for row in tasks)
    assert started.keys() <= {row["id"] for row in tasks}
    durations = ("wait_s", "run_s", "total_s", "late_s")
    assert [(row["task"], name, row[name]) for row in rows for name in durations if (row[name] or 0) < 0] == []
    _check_report(summaries(Snapshot(root), period=Period()), of_kind, rows, Counter(wanted.values()))
    repeated = sum(row["attempts"] > 1 for row in tasks)
    figures(f"{count:,} tasks, {written:,} events, {len(rows):,} messages, {repeated} delivered again: no difference")


def _check_report(report, of_kind, rows, wanted):
    states = wanted + Counter(PENDING=len(RAW))
    assert dict(zip(report["states"]["state"], report["states"]["count"], strict=True)) == states
    by_task = dict(zip(report["by_task"]["task"], report["by_task"]["messages"], strict=True))
    assert by_task == {f"ledger.{kind}": len(ids) * (1 + RETRIES * (kind == "retry")) for kind, ids in of_kind.items() if ids}
    assert report["throughput"]["published"].sum() == len(rows)
    assert report["throughput"]["delivered"].sum() == sum(row["attempts"] for row in rows)
    assert report["dead_letters"]["count"].sum() == len(of_kind["reject"])
    failed = report["failures"].groupby(["task", "state"])["count"].sum().to_dict()
    bad = {"fail": "FAILED", "expire": "FAILED", "revoke": "FAILED", "reject": "DEAD"}
    wanted_failures = {(f"ledger.{kind}", state): len(of_kind[kind]) for kind, state in bad.items()}
    wanted_failures[("ledger.retry", "RETRIED")] = RETRIES * len(of_kind["retry"])
    assert failed == wanted_failures
    assert set(report["failures"].loc[report["failures"]["task"] == "ledger.fail", "error"]) == {"ValueError"}
