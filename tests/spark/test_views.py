"""The views have the same rows in DuckDB and in Spark, and each reader of Parquet has the same tables."""

from __future__ import annotations

import argparse
import csv
import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

pytest.importorskip("duckdb", reason="needs the extra `spark`")

import pandas as pd
import pyarrow.compute as pc
from pyarrow import dataset

from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.events import Event
from celery_redis_plus.spark import jobs
from celery_redis_plus.spark.expiry import expire
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.layers import LAYOUTS
from celery_redis_plus.spark.manifest import TABLES, files
from celery_redis_plus.spark.views import VIEWS, query, register_views, text
from tests.spark.model import percentile
from tests.support.event_streams import START_MS, lives
from tests.support.stored_events import StoredEvents

LIVES = lives(900)
START_US = START_MS * 1000


def message(number, *, parent=None, worker="celery-1.4@a", wait_us=1_000_000, run_us=500_000, reason=None):
    """The life of a task of a workflow whose root is task 0."""
    start = START_US + 3_600_000_000 + number * 10_000_000
    tag = f"{start // 1000:011x}{number:08x}.1"
    about = {"task": f"shop.step{number}", "task_id": f"task-{number}", "root_id": "task-0", "parent_id": parent}
    return [
        Event(event="published", ts=start, id=tag, **about),
        Event(event="claimed", ts=start + wait_us, id=tag, worker=worker),
        Event(event="acked", ts=start + wait_us + run_us, id=tag, reason=reason),
    ]


#: 0 -> 1 -> 3, and 0 -> 2.
WORKFLOW = [
    *message(0),
    *message(1, parent="task-0", wait_us=2_000_000),
    *message(2, parent="task-0", worker="celery-1.5@a"),
    *message(3, parent="task-1", worker="celery-1.5@a", wait_us=3_000_000, reason="failure"),
]


WORKFLOW_DEPTH = "SELECT count(*) AS tasks, max(depth) AS deepest FROM workflow"


@pytest.fixture
def root(tmp_path):
    made = StoredEvents(tmp_path / "tables")
    made.add({"celery": LIVES[:1500]})
    fold(made.root)
    made.add({"celery": LIVES[1500:], "flow": WORKFLOW})
    fold(made.root)
    return made.root


def rows_of(root, sql):
    return query(root, sql).to_pylist()


def test_each_view_has_the_same_rows_in_duckdb_and_spark(spark, root):
    register_views(spark, root)
    for view in VIEWS:
        here = comparable(query(root, f"SELECT * FROM {view}").to_pandas())
        there = comparable(spark.table(view).toPandas())
        assert len(here) > 1, view
        pd.testing.assert_frame_equal(here, there, check_dtype=False)


def comparable(rows):
    """Return rows in an order of their own, with values that are alike in both."""

    def value(found):
        if found is None or found is pd.NaT or (isinstance(found, float) and math.isnan(found)):
            return None
        if hasattr(found, "isoformat"):
            return str(found)[:26].removesuffix("+00:00").partition(".")[0]
        return round(float(found), 6) if isinstance(found, (int, float)) or hasattr(found, "as_integer_ratio") else str(found)

    plain = pd.DataFrame({name: [value(found) for found in rows[name]] for name in sorted(rows.columns)}, dtype=object)
    order = sorted(range(len(plain)), key=lambda place: str(plain.iloc[place].tolist()))
    return plain.iloc[order].reset_index(drop=True)


def test_each_view_says_what_it_is():
    for view in VIEWS:
        assert text(view).startswith("-- "), view


def test_attempts_are_the_deliveries(root):
    assert rows_of(root, "SELECT count(*) AS found FROM attempts")[0]["found"] == sum(
        event.event == "claimed" for event in [*LIVES, *WORKFLOW]
    )
    (one,) = rows_of(root, "SELECT * FROM attempts WHERE task_id = 'task-3'")
    assert (one["attempt"], one["worker"], one["ended_by"], one["reason"]) == (1, "celery-1.5@a", "acked", "failure")
    assert (one["wait_s"], one["run_s"]) == (3.0, 0.5)
    most = "SELECT queue, id, max(attempt) AS most FROM attempts GROUP BY queue, id"
    assert (
        rows_of(root, f"SELECT count(*) AS wrong FROM ({most}) JOIN messages USING (queue, id) WHERE most <> attempts")[0][
            "wrong"
        ]
        == 0
    )


def test_percentiles_of_an_hour_are_exact(root):
    (hour,) = rows_of(
        root, "SELECT messages, wait_p50_s, wait_p95_s FROM hourly WHERE queue = 'celery' ORDER BY messages DESC LIMIT 1"
    )
    task = "SELECT task, hour FROM hourly WHERE queue = 'celery' ORDER BY messages DESC LIMIT 1"
    waits = rows_of(
        root,
        f"SELECT wait_s FROM messages, ({task}) AS most WHERE messages.queue = 'celery' AND messages.task = most.task "
        "AND date_trunc('hour', published_at) = most.hour",
    )
    known = [row["wait_s"] for row in waits if row["wait_s"] is not None]
    assert len(waits) == hour["messages"]
    assert (hour["wait_p50_s"], hour["wait_p95_s"]) == (percentile(known, 0.5), percentile(known, 0.95))


def test_a_workflow_goes_from_its_root_to_its_leaves(root):
    found = rows_of(root, "SELECT task_id, depth, waits_s, runs_s, state FROM workflow WHERE root_id = 'task-0' ORDER BY task_id")
    assert [(row["task_id"], row["depth"], row["waits_s"], row["runs_s"]) for row in found] == [
        ("task-0", 0, 1.0, 0.5),
        ("task-1", 1, 3.0, 1.0),
        ("task-2", 1, 2.0, 1.0),
        ("task-3", 2, 6.0, 1.5),
    ]


def test_deploys_are_told_apart_by_the_names_of_workers(root):
    found = rows_of(root, "SELECT version, sum(attempts) AS attempts, max(failed) AS failed FROM deploys GROUP BY version")
    assert {row["version"]: (row["attempts"], row["failed"]) for row in found} == {"1.4": (2, 0.0), "1.5": (2, 1.0)}


def test_a_task_may_have_started_itself_more_often_than_spark_recurs(spark, tmp_path):
    made = StoredEvents(tmp_path / "tables")
    lives = [message(number, parent=f"task-{number - 1}" if number else None) for number in range(120)]
    made.add({"poll": [event for life in lives for event in life]})
    fold(made.root)
    register_views(spark, made.root)
    for deepest in (query(made.root, WORKFLOW_DEPTH).to_pandas(), spark.sql(WORKFLOW_DEPTH).toPandas()):
        assert deepest.values.tolist() == [[120, 119]]


def test_a_task_that_replaces_itself_stays_in_its_workflow(tmp_path):
    # `Task.replace` publishes a new message with the task's id, whose parent is the task.
    first, second, third = message(0), message(1, parent="task-0"), message(2, parent="task-1")
    again = message(3, parent="task-1")
    again[0] = replace(again[0], task_id="task-1", task="shop.step1_again")
    made = StoredEvents(tmp_path / "tables")
    made.add({"flow": [*first, *second, *third, *again]})
    fold(made.root)
    found = rows_of(made.root, "SELECT task_id, parent_id, task, depth FROM workflow ORDER BY depth")
    assert [tuple(row.values()) for row in found] == [
        ("task-0", None, "shop.step0", 0),
        ("task-1", "task-0", "shop.step1_again", 1),
        ("task-2", "task-1", "shop.step2", 2),
    ]


@pytest.mark.parametrize(
    ("event", "reason", "failed"),
    [
        ("requeued", "rejected", 1),
        ("recovered", "connection_lost", 1),
        ("recovered", "heartbeat_lost", 1),
        ("requeued", "consumer_timeout", 1),
        ("retried", "rejected", 1),
        ("retried", "requeue", 0),
        ("retried", "handed_back", 0),
        ("requeued", "requeue", 0),
        ("recovered", "not_begun", 0),
    ],
)
def test_an_attempt_has_failed_where_the_delivery_counts_as_failed(tmp_path, event, reason, failed):
    published, claimed, acked = message(0)
    back = Event(event=event, ts=claimed.ts + 1, id=claimed.id, reason=reason, delay=10 if event == "retried" else None)
    promoted = [Event(event="promoted", ts=claimed.ts + 2, id=claimed.id)] if event == "retried" else []
    again = replace(claimed, ts=claimed.ts + 3)
    made = StoredEvents(tmp_path / "tables")
    made.add({"q": [published, claimed, back, *promoted, again, acked]})
    fold(made.root)
    assert rows_of(made.root, "SELECT attempts, failed FROM deploys") == [{"attempts": 2, "failed": failed / 2}]
    for table in ("queues", "tasks", "workers"):
        assert rows_of(made.root, f"SELECT sum(failed_deliveries) AS found FROM {table}") == [{"found": failed}]


def test_deaths_and_shares_add_up_to_the_messages(root):
    dead = rows_of(root, "SELECT count(*) AS found FROM messages WHERE state IN ('FAILED', 'DEAD')")[0]["found"]
    assert rows_of(root, "SELECT sum(messages) AS found FROM deaths")[0]["found"] == dead > 0
    (sums,) = rows_of(root, "SELECT sum(messages) AS messages, sum(messages * failed) AS failed FROM slo")
    assert sums["failed"] == pytest.approx(dead)
    assert sums["messages"] == rows_of(root, "SELECT count(*) AS found FROM messages")[0]["found"]


def test_each_reader_has_the_same_tables(root):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    import duckdb

    for table, column in zip((*TABLES, "events"), ("attempts", "delivered", "acked", "acked", "n"), strict=True):
        names = files(root, table)
        arrow = dataset.dataset(names, schema=LAYOUTS[table].schema).to_table()
        figures = {
            "pyarrow": (arrow.num_rows, pc.sum(arrow.column(column)).as_py()),
            "pandas": _figures(pd.concat([pd.read_parquet(name) for name in names])[column]),
            "polars": _figures(polars.read_parquet(names)[column]),
            "duckdb": duckdb.read_parquet(names, union_by_name=True).aggregate(f"count(*), sum({column})").fetchall()[0],
        }
        assert len({(int(rows), int(total)) for rows, total in figures.values()}) == 1, (table, figures)


def _figures(column):
    return len(column), column.sum()


def test_the_first_delivery_counts_for_the_slo(tmp_path):
    first = message(0)[:2]
    returned = [Event(event="requeued", ts=first[-1].ts + 100_000, id=first[0].id)]
    claimed = [Event(event="claimed", ts=first[-1].ts + 30_000_000, id=first[0].id, worker="celery-1.4@a")]
    made = StoredEvents(tmp_path / "tables")
    made.add({"celery": [*first, *returned, *claimed]})
    fold(made.root)
    assert rows_of(made.root, "SELECT delivered_in_1_s, delivered_in_10_s FROM slo") == [
        {"delivered_in_1_s": 1.0, "delivered_in_10_s": 1.0}
    ]


def test_a_first_wait_that_nobody_knows_is_no_late_delivery(tmp_path):
    """The events before it were lost, or those of all deliveries have expired."""
    claimed = message(1)[1]
    twice = [*message(1)[:2], replace(claimed, event="requeued", worker=None), claimed, message(1)[2]]
    made = StoredEvents(tmp_path / "tables")
    made.add({"begun": message(0)[1:], "once": message(0), "twice": twice, "waits": message(0)[:1]})
    fold(made.root)

    def shares():
        return {row["queue"]: row["delivered_in_1_s"] for row in rows_of(made.root, "SELECT * FROM slo")}

    assert shares() == {"begun": None, "once": 1.0, "twice": 1.0, "waits": 0.0}
    expire(made.root, date(2026, 1, 1), kinds=["events"])
    assert shares() == {"begun": None, "once": 1.0, "twice": None, "waits": 0.0}


def test_no_attempt_is_negative_where_the_clock_of_a_server_went_back(tmp_path):
    published, claimed, acked = message(0)
    made = StoredEvents(tmp_path / "tables")
    made.add({"celery": [published, replace(claimed, ts=START_US), replace(acked, ts=START_US - 1)]})
    fold(made.root)
    assert rows_of(made.root, "SELECT wait_s, run_s FROM attempts") == [{"wait_s": 0.0, "run_s": 0.0}]


def test_an_hour_is_one_of_utc_in_any_session_of_spark(spark, root):
    found = query(root, "SELECT DISTINCT CAST(epoch(hour) AS BIGINT) AS hour FROM hourly ORDER BY hour")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        register_views(spark, root)
        there = spark.sql("SELECT DISTINCT unix_seconds(hour) AS hour FROM hourly ORDER BY hour").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [row.hour for row in there] == found["hour"].to_pylist()


@pytest.fixture
def sql(root):
    def run(words, *more):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said = []
        assert jobs.run(parser.parse_args(["sql", words, "--root", str(root), *more]), said.append) == 0
        return "\n".join(said)

    return run


def test_the_job_prints_rows(sql):
    words = "SELECT task, depth, published_at FROM workflow WHERE root_id = 'task-0' ORDER BY depth, task LIMIT 2"
    at = datetime.fromtimestamp(START_US / 1e6 + 3600, UTC)
    assert sql(words).splitlines()[0].split() == ["task", "depth", "published_at"]
    assert sql(words, "--format", "csv").splitlines()[:2] == [
        "task,depth,published_at",
        f"shop.step0,0,{at.isoformat()}",
    ]
    first = json.loads(sql(words, "--format", "json").splitlines()[0])
    assert (first["task"], first["depth"]) == ("shop.step0", 0)


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("SELECT unnest([9007199254740993, NULL]) AS x", {"x": 9007199254740993}),
        ("SELECT TIMESTAMPTZ '2280-01-01 00:00:00.000001+00' AS due", {"due": "2280-01-01T00:00:00.000001+00:00"}),
        ("SELECT 1 AS a, 2 AS a, 'x' AS a_1", {"a": 1, "a_1": 2, "a_1_1": "x"}),
        ("SELECT [1.5, 'nan'::DOUBLE] AS x, {'b': encode('é')} AS y", {"x": [1.5, None], "y": {"b": "é"}}),
        ("SELECT sum(n) AS x FROM (SELECT 1::HUGEINT AS n)", {"x": 1}),
    ],
)
def test_rows_are_printed_as_they_are(sql, words, row):
    assert json.loads(sql(words, "--format", "json").splitlines()[0]) == row
    texts = [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
    assert next(csv.reader(sql(words, "--format", "csv").splitlines()[1:])) == texts
    assert sql(words).splitlines()[0].split() == list(row)


@pytest.mark.parametrize("words", ["SELECT nothing FROM messages", "SELEC 1", "SELECT * FROM nowhere"])
def test_a_query_that_is_wrong_is_one_line(sql, words):
    with pytest.raises(InvalidArgument) as caught:
        sql(words)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tables_is_told_so(tmp_path):
    with pytest.raises(TablesUnusable, match="spark ingest"):
        query(tmp_path, "SELECT 1")


def test_a_failure_behind_an_early_ack_and_a_rejection_are_failures(tmp_path):
    early, rejected = message(0, reason="early"), message(1)[:2]
    early.append(Event(event="failed", ts=early[-1].ts + 2_000_000, id=early[0].id, reason="failure", error="ValueError: x"))
    rejected.append(Event(event="dead_lettered", ts=rejected[-1].ts + 1_000_000, id=rejected[0].id, reason="rejected"))
    made = StoredEvents(tmp_path / "tables")
    made.add({"celery": [*early, *rejected]})
    fold(made.root)
    ends = "SELECT ended_by, reason, error, run_s FROM attempts ORDER BY task"
    assert [tuple(row.values()) for row in rows_of(made.root, ends)] == [
        ("failed", "failure", "ValueError: x", 2.5),
        ("dead_lettered", "rejected", None, 1.0),
    ]
    assert [row["failed"] for row in rows_of(made.root, "SELECT failed FROM deploys")] == [1.0, 1.0]
    assert rows_of(made.root, "SELECT worker, sum(failed) AS failed, sum(dead) AS dead FROM workers GROUP BY worker") == [
        {"worker": "celery-1.4@a", "failed": 1, "dead": 1}
    ]
