"""The jobs as the command line starts them, from a stream to a report; and what bad input is told."""

from __future__ import annotations

import argparse
import re

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow.dataset
from pyarrow import parquet

from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, NoEvents, TablesUnusable
from celery_redis_plus.event_log import readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import jobs, tables
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.manifest import TABLES_VERSION, files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.storage import INGEST_LOCK, RUN_LOCK
from celery_redis_plus.spark.summaries import Period
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(1500)


def keys_of(queue):
    return Keys("").queue(queue)


@pytest.fixture
def job(spark, monkeypatch, tmp_path):
    """Run a job in the tests' own session: `job("aggregate")`; return what it said."""

    class Lasting:
        def __getattr__(self, name):
            return getattr(spark, name)

        def stop(self):
            """Leave the tests' session alone."""

    monkeypatch.setattr(jobs, "_session", lambda arguments, settings: Lasting())

    def run(*words, root="tables"):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said = []
        assert jobs.run(parser.parse_args([*words, "--root", root if ":/" in root else str(tmp_path / root)]), said.append) == 0
        return "\n".join(said)

    return run


def test_from_the_stream_to_the_report(job, spark, redis_client, broker_url, tmp_path):
    root = tmp_path / "tables"
    count = add_events(redis_client, "celery", LIVES[:2000])
    job("ingest", "--url", broker_url, "--master", "", "--once", "--batch", "700")
    assert "messages of 2025-11-24" in job("aggregate")
    count += add_events(redis_client, "celery", LIVES[2000:])
    assert f"{count - 2000:,} events" in job("ingest", "--url", broker_url, "--master", "", "--once")

    assert len(files(root, "events")) > 1
    assert "messages of 2025-11-24" in job("aggregate")
    assert job("aggregate") == "nothing new"
    assert re.fullmatch(r"\d+ files are \d+ now", job("compact"))
    assert job("compact") == "nothing to compact"
    said = job(
        "report",
        "--output",
        str(tmp_path / "report.html"),
        "--data",
        str(tmp_path / "data"),
        "--against",
        "2025-11-24..2025-11-24T16:00:05",
    )

    assert len(files(root, "events")) == 1
    found = pyarrow.dataset.dataset(files(root, "events")).to_table()
    assert found.num_rows == count
    assert pyarrow.compute.count_distinct(found.column("n")).as_py() == count
    finished = sum(event.event == "acked" and event.reason is None for event in LIVES)
    assert f"COMPLETED {finished:,}" in said
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert f'<td>COMPLETED</td><td class="n">{finished:,}</td>' in page
    assert parquet.read_table(tmp_path / "data" / "states.parquet").num_rows >= 4
    assert (tmp_path / "data" / "comparison.csv").exists()
    assert spark.read.parquet(*tables.files(root, "messages")).count() == 1500


def test_what_was_trimmed_before_the_first_ingest_is_told_by_the_job_and_the_report(job, redis_client, broker_url, tmp_path):
    count = add_events(redis_client, "celery", LIVES)
    redis_client.xtrim(keys_of("celery").events, maxlen=1000, approximate=False)

    said = job("ingest", "--url", broker_url, "--master", "", "--once")
    numbers = f"{START_MS}-1 to {START_MS}-{count - 1000}"
    assert f"queue 'celery': {count - 1000:,} events, {numbers}, were trimmed before they were read" in said
    assert "were trimmed" not in job("ingest", "--url", broker_url, "--master", "", "--once")

    job("aggregate")
    warning = f"These figures are incomplete: {count - 1000:,} events were trimmed before they were read"
    assert warning in job("report", "--output", str(tmp_path / "report.html"))
    assert warning in (tmp_path / "report.html").read_text(encoding="utf-8")
    later = job("report", "--output", str(tmp_path / "report.html"), "--period", "2025-11-25..")
    assert "incomplete" not in later, "this period has all its events"


def test_a_second_ingest_on_a_folder_is_refused(job, redis_client, broker_url, tmp_path):
    add_events(redis_client, "celery", LIVES[:100])
    with (
        opened(tmp_path / "tables").locked(INGEST_LOCK),
        pytest.raises(TablesUnusable, match=r"another ingest runs in .*tables; wait until it is done"),
    ):
        job("ingest", "--url", broker_url, "--master", "", "--once")


def test_a_second_service_on_a_folder_is_refused(job, redis_client, broker_url, tmp_path):
    add_events(redis_client, "celery", LIVES[:100])
    with opened(tmp_path / "tables").locked(RUN_LOCK), pytest.raises(TablesUnusable, match="another service runs"):
        job("run", "--url", broker_url)


def test_two_folders_have_readers_of_their_own_and_a_name_belongs_to_one(job, redis_client, broker_url, tmp_path):
    add_events(redis_client, "celery", LIVES[:100])
    line = ("ingest", "--url", broker_url, "--master", "", "--once")
    job(*line)
    job(*line, root="other")
    with EventLog(broker_url) as log:
        assert len({reader.name for reader in readers.readers(log, ["celery"])}) == 2

    job(*line, "--reader", "mine", root="third")
    with pytest.raises(CeleryRedisPlusError, match="reader 'mine' is registered by another folder of tables"):
        job(*line, "--reader", "mine", root="fourth")


@pytest.mark.parametrize("root", ["hdfs://lake/celery", "s3:/lake", "file://host/tables"])
def test_a_root_with_a_scheme_that_is_not_served_is_refused_and_no_folder_made(job, broker_url, tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    for line in (("ingest", "--url", broker_url), ("aggregate",), ("compact",), ("check",), ("replay", "--url", broker_url)):
        with pytest.raises(CeleryRedisPlusError, match=f"'{root}' is not allowed; allowed: a URL of s3://"):
            job(*line, root=root)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report",), "run `celery-redis-plus spark ingest`"),
        (("report", "--period", "yesterday"), "FROM..TO"),
        (("aggregate", "--conf", "x"), "NAME=VALUE"),
        (("ingest", "--url-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        (("ingest", "--url", "redis://127.0.0.1:1/0"), "check that the server runs"),
        (("ingest", "--url", "http://x"), "unknown scheme"),
        (("ingest", "--url", "redis://:pw@127.0.0.1:1/0", "--master", "spark://x:7077"), "--url-env"),
    ],
)
def test_bad_input_is_one_clear_line(job, words, message):
    with pytest.raises(CeleryRedisPlusError, match=message) as caught:
        job(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("aggregate",), ("compact",), ("expire", "--keep-days", "9"), ("forget", "--where", "true"), ("check",),
        ("publish", "--to", "file:///copy"), ("replay", "--url", "redis://127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_there_is_not_made(job, tmp_path, words):
    with pytest.raises(TablesUnusable, match=r"nothing is in .*tables: correct --root, or run `celery-redis-plus spark ingest`"):
        job(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("compact",), ("expire", "--keep-days", "9"), ("delta",), ("sql", "SELECT 1"), ("report",)])
def test_a_job_that_needs_no_spark_takes_no_setting_of_it(job, words, capsys):
    with pytest.raises(SystemExit):
        job(*words, "--master", "spark://x:7077")
    assert "unrecognized arguments: --master" in capsys.readouterr().err


def test_a_broker_without_an_archive_is_told_so(job, broker_url):
    with pytest.raises(NoEvents, match="event_log=True"):
        job("ingest", "--url", broker_url)


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_pattern_that_no_queue_matches_is_an_error(job, redis_client, broker_url, engine):
    add_events(redis_client, "celery", LIVES[:10])
    with pytest.raises(NoEvents, match=r"no queue that has events matches --queues 'mail\*'"):
        job("ingest", "--url", broker_url, "--master", "", "--once", "--queues", "mail*", "--engine", engine)


@pytest.mark.parametrize("days", ["0", "-3", "1000000000", "x"])
def test_a_number_of_days_that_cannot_be_kept_is_refused(job, capsys, days):
    with pytest.raises(SystemExit):
        job("expire", f"--keep-days={days}")
    assert "allowed is 1 to 36,500" in capsys.readouterr().err


@pytest.mark.parametrize("period", ["2300-01-01..", "..0001-01-02", "9999-12-31T23:59:59-12:00..", "2026-02-01..2026-01-01"])
def test_a_period_beyond_the_calendar_is_refused(period):
    with pytest.raises(InvalidArgument, match="of the years 1970 to 2261"):
        Period.parse(period)


def test_a_url_that_cannot_be_parsed_is_not_printed(job):
    with pytest.raises(CeleryRedisPlusError, match="no valid host or port") as caught:
        job("ingest", "--once", "--url", "redis://u:secret@[::1/0")
    assert "secret" not in str(caught.value)


def test_tables_of_a_later_release_and_damaged_ones_are_refused(job, tmp_path):
    manifest = tmp_path / "tables" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text('{"tables_version": 99}', encoding="utf-8")
    with pytest.raises(TablesUnusable, match=r"version 99.*Upgrade"):
        job("aggregate")
    manifest.write_text(f'{{"tables_version": {TABLES_VERSION}, "colour": "red"}}', encoding="utf-8")
    with pytest.raises(TablesUnusable, match=r"colour.*restore it"):
        job("aggregate")
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(TablesUnusable, match="restore it"):
        job("aggregate")


def test_what_a_java_trace_hides_is_found():
    trace = (
        "An exception was raised\n"
        "  File x.py\n"
        "celery_redis_plus.errors.EventsLost: queue 'q': 3 events were trimmed\n"
        "\n\tat org.apache.spark.x(Unknown Source)\n"
    )
    assert jobs.one_line(trace) == "queue 'q': 3 events were trimmed"
    assert jobs.one_line("first\nsecond") == "first"


@pytest.mark.parametrize(
    ("words", "value", "allowed"),
    [
        *((("ingest", "--interval"), value, "a number of seconds from 0.01") for value in ("0", "-1", "nan", "inf", "x")),
        *((("run", "--fresh"), value, "a number of seconds from 0.1") for value in ("0", "nan")),
        (("check", "--max-age"), "nan", "a number of seconds from 0"),
        (("compact", "--keep-versions"), "-1", "a number of seconds from 0"),
        (("ingest", "--batch"), "0", "a whole number from 1"),
        (("run", "--batch-bytes"), "-5", "a whole number from 0"),
        (("run", "--waiting-events"), "-1", "a whole number from 0"),
    ],
)
def test_a_number_that_is_not_allowed_is_told_with_its_argument(capsys, words, value, allowed):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    job, name = words
    with pytest.raises(SystemExit):
        parser.parse_args([job, f"{name}={value}", "--root", "x", *(["--url", "redis://h"] if job in {"ingest", "run"} else [])])
    assert f"argument {name}: {value!r} is not allowed; allowed is {allowed}" in capsys.readouterr().err
