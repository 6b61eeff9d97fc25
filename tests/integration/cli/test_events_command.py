"""`celery-redis-plus events` and what `spark` says where Spark cannot run."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from pyarrow import parquet

from celery_redis_plus.cli.main import main
from celery_redis_plus.event_log import readers
from celery_redis_plus.event_log.stream import EventLog
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(300)


@pytest.fixture
def run(broker_url, capsys):
    def call(*arguments):
        status = main(["events", *arguments, "--url", broker_url])
        return status, capsys.readouterr()

    return call


@pytest.fixture
def count(redis_client):
    return add_events(redis_client, "celery", LIVES, payload=b'{"h": 1}\n\xff') + add_events(redis_client, "mail", LIVES[:50])


def test_events_are_exported_to_parquet(run, count, tmp_path):
    file = tmp_path / "events.parquet"
    status, printed = run("export", "--output", str(file))

    assert status == 0
    assert f"{count:,} events" in printed.err
    rows = parquet.read_table(file).to_pylist()
    assert len({(row["queue"], row["n"]) for row in rows}) == count
    assert [row["event"] for row in rows if row["queue"] == "celery"] == [event.event for event in LIVES]


def test_events_are_exported_as_lines_of_json(run, count):
    status, printed = run("export", "--format", "jsonl", "--output", "-", "--queues", "mail")

    assert status == 0
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["queue"], row["n"]) for row in rows] == [("mail", n) for n in range(1, 51)]
    assert rows[0]["ts"] == "2025-11-24T16:00:00+00:00"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "--output", "-"), "Parquet needs a file"),
        (("export", "--output", "x", "--queues", "none"), "queue 'none' has no events; queues that have: celery, mail"),
        (("drop-reader", "nobody"), "'nobody' is not registered"),
    ],
)
def test_bad_input_is_one_clear_line(run, count, arguments, message):
    status, printed = run(*arguments)

    assert status == 1
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_stale_reader_is_listed_as_such_and_dropped(run, count, broker_url, redis_client):
    with EventLog(broker_url) as log:
        readers.commit(log, "gone", {"celery": (START_MS, 100)}, trim=False)
        redis_client.hset(log.keys.queue("celery").events_readers, "gone", f"{START_MS}-100 1000 0")
        readers.commit(log, "alive", {"celery": (START_MS, 200)}, trim=False)

    _, printed = run("readers")
    lines = {line.split()[0]: line for line in printed.out.splitlines()[1:]}
    assert "stale" in lines["gone"]
    assert "stale" not in lines["alive"]

    assert run("drop-reader", "gone")[0] == 0
    assert "gone" not in run("readers")[1].out


def test_a_spark_job_says_in_one_line_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # An empty folder is refused before Java is looked for.
    (tmp_path / "of a table").touch()

    # Few new events need no Java.
    assert main(["spark", "aggregate", "--engine", "spark", "--root", str(tmp_path)]) == 1

    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert ("Java is missing: install" if find_spec("pyspark") else "pip install 'duckdb>=1.3' 'matplotlib>=3.9'") in said


@pytest.mark.skipif(find_spec("pyspark") is not None, reason="the extra `spark` is installed here")
@pytest.mark.parametrize("job", ["aggregate", "report", "compact", "check"])
def test_a_spark_job_without_the_extra_says_in_one_line_what_to_install(job, capsys, tmp_path):
    assert main(["spark", job, "--root", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "is not installed: pip install 'duckdb>=1.3' 'matplotlib>=3.9'" in said
