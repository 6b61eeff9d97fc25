"""Tables are written at a URL as in a folder: exactly, whatever is killed, by one writer at a time."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

import pandas as pd

from celery_redis_plus.errors import InvalidArgument, ObjectStoreFailed, TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import ingest_jobs, jobs, leftovers
from celery_redis_plus.spark import lease as lease_module
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.storage import INGEST_LOCK
from celery_redis_plus.spark.summaries import Period, summaries
from tests.support.event_streams import add_events, lives
from tests.support.s3 import SECRET
from tests.support.spark_jobs import Job
from tests.support.waiting import wait_until

LIVES = lives(900)
#: Leases end in a second, in this process and in those that it starts.
QUICK = {"BEAT_S": 0.1, "SILENT_S": 1.0, "POLL_S": 0.05}
PROGRAM = f"""
import sys
from celery_redis_plus.cli.main import main
from celery_redis_plus.spark import lease
lease.__dict__.update({QUICK!r})
sys.exit(main(["spark", *sys.argv[1:]]))
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in QUICK.items():
        monkeypatch.setattr(lease_module, name, seconds)


@pytest.fixture
def job():
    def run(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said = []
        assert jobs.run(parser.parse_args(words), said.append) == 0, said
        return "\n".join(said)

    return run


@pytest.fixture
def start(tmp_path):
    """Start a job as a process of its own."""
    started = []

    def run(*words):
        started.append(Job((sys.executable, "-P", "-c", PROGRAM, *words), tmp_path / f"job{len(started)}.log"))
        return started[-1]

    yield run
    for one in started:
        one.end()


def numbers(root):
    rows = [row for batch in Snapshot(root).batches("events", ["queue", "epoch", "n"]) for row in batch.to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


def exact(root, count):
    found = numbers(root)
    assert len(found) == len(set(found)) == count


def equal(one, other):
    """Compare all figures of two places."""
    first, second = (summaries(Snapshot(where), period=Period()) for where in (one, other))
    assert first.keys() == second.keys()
    for name, rows in first.items():
        if name != "losses":
            pd.testing.assert_frame_equal(rows, second[name])


def test_from_the_stream_to_the_report(job, url, redis_client, broker_url, tmp_path):
    folder = str(tmp_path / "tables")
    count = 0
    for events in (LIVES[:1000], LIVES[1000:]):
        count += add_events(redis_client, "celery", events)
        for root in (url, folder):
            assert f"{len(events):,} events in" in job("ingest", "--url", broker_url, "--root", root, "--once", "--batch", "700")
            assert "messages of 2025-11-24" in job("aggregate", "--root", root)
            assert job("aggregate", "--root", root) == "nothing new"
    equal(url, folder)
    exact(url, count)
    assert re.fullmatch(r"\d+ files are \d+ now", job("compact", "--root", url))
    assert "WRONG" not in job("check", "--root", url)
    assert "COMPLETED" in job("report", "--root", url, "--output", str(tmp_path / "report.html"))
    assert "messages of" in job("aggregate", "--root", url, "--rebuild", "--engine", "arrow")
    equal(url, folder)
    assert "events removed" in job("expire", "--root", url, "--before", "2025-11-25")
    assert not (tmp_path / "s3:").exists()


def test_files_and_objects_do_not_grow_with_the_number_of_runs(s3, redis_client, broker_url, monkeypatch):
    monkeypatch.setattr(leftovers, "KEPT_S", -60.0)
    count, sizes = 0, []
    for number in range(7):
        count += add_events(redis_client, "celery", LIVES[number * 60 : number * 60 + 60])
        store = ObjectStore(s3.url)
        with store.locked(INGEST_LOCK):
            ArrowIngest(store, {"url": broker_url}).run(threading.Event(), print, once=True)
        fold(store)
        sizes.append(len(store.names()))
    fold(s3.url)
    compact(s3.url)
    fold(s3.url)
    exact(s3.url, count)
    assert max(sizes[3:]) < 60, sizes
    names = ObjectStore(s3.url).names()
    assert len(names) < 30, sorted(names)
    assert len([name for name in names if name.startswith("incoming/")]) == 1, "the last batch says where the next one begins"


class KilledError(Exception):
    pass


class Steps:
    """Each write, removal and new file is a step. The process dies before or after one, and gives no lease back."""

    def __init__(self, monkeypatch, *, before):
        #: Steps that are left to it.
        self.left = 10**9
        self.before = before
        for name in ("write", "remove", "writer", "clear"):
            monkeypatch.setattr(ObjectStore, name, self.counted(getattr(ObjectStore, name)))
        release = lease_module.Lease.release
        monkeypatch.setattr(
            lease_module.Lease, "release", lambda lease: release(lease) if self.left > 0 else lease.fall_silent()
        )  # fmt: skip

    def counted(self, method):
        def run(store, *arguments):
            # The beats of a lease go on beside it.
            if threading.current_thread() is not threading.main_thread():
                return method(store, *arguments)
            self.left -= 1
            if self.left == 0 and self.before:
                raise KilledError
            done = method(store, *arguments)
            if self.left == 0:
                raise KilledError
            return done

        return run


@pytest.mark.weekly
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_step_it_is_exact(s3, redis_client, broker_url, monkeypatch, seed):
    monkeypatch.setattr(leftovers, "KEPT_S", -60.0)
    monkeypatch.setattr(lease_module, "SILENT_S", 0.3)
    steps = Steps(monkeypatch, before=seed % 2)
    source = {"url": broker_url, "readerName": "r", "trimOnCommit": "true", "maxOffsetsPerTrigger": 17}

    def run():
        store = ObjectStore(s3.url)
        with store.locked(INGEST_LOCK):
            ArrowIngest(store, source).run(threading.Event(), print, once=True)
        fold(store)
        compact(store)

    count, kills = 0, 0
    for number in range(14):
        count += add_events(redis_client, "celery", LIVES[number * 30 : number * 30 + 30])
        steps.left = 3 + 4 * number + seed
        try:
            run()
        except KilledError:
            kills += 1
    assert kills > 8
    steps.left = 10**9
    run()
    exact(s3.url, count)
    assert [finding for finding in check(s3.url) if finding.wrong] == []


def test_where_an_ingest_stands_stays_while_another_one_begins(s3, redis_client, broker_url, monkeypatch):
    """An aggregation removes old batches just when it is not known which of them count."""
    count = add_events(redis_client, "celery", LIVES[:500])
    source, store = {"url": broker_url}, ObjectStore(s3.url)
    with store.locked(INGEST_LOCK):
        ArrowIngest(store, source).run(threading.Event(), print, once=True)
    fold(store)
    last_batch = ObjectStore.last_batch

    def between(self, earlier):
        fold(s3.url, kept_s=-60.0)
        compact(s3.url, kept_s=-60.0)
        return last_batch(self, earlier)

    monkeypatch.setattr(ObjectStore, "last_batch", between)
    count += add_events(redis_client, "celery", LIVES[500:])
    with store.locked(INGEST_LOCK):
        ArrowIngest(store, source).run(threading.Event(), print, once=True)
    fold(store)
    exact(store, count)
    store.remove(name for name in store.names("incoming") if name.endswith("_committed.json"))
    with pytest.raises(TablesUnusable, match="says where the ingest stands"), store.locked(INGEST_LOCK):
        ArrowIngest(store, source).run(threading.Event(), print, once=True)


def test_its_process_is_killed_and_loses_and_doubles_nothing(s3, start, redis_client, broker_url):
    count = add_events(redis_client, "celery", lives(12_000))
    words = ("ingest", "--url", broker_url, "--root", s3.url, "--batch", "2500", "--once", "--reader", "r", "--trim")
    for kill in range(4):
        job = start(*words)
        if kill == 3:
            assert job.process.wait(120) == 0, job.said
            break
        job.until(lambda kill=kill, job=job: job.said.count("batch ") >= 1 + kill % 2)
        job.process.send_signal(signal.SIGKILL)
        job.process.wait(60)
    fold(s3.url)
    exact(s3.url, count)
    with EventLog(broker_url) as log:
        assert redis_client.xlen(log.keys.queue("celery").events) < 200


def test_a_second_ingest_is_refused_with_one_line(s3, start, redis_client, broker_url):
    add_events(redis_client, "celery", LIVES[:500])
    first = start("ingest", "--url", broker_url, "--root", s3.url, "--interval", "0.2")
    first.until(lambda: "batch 0" in first.said)
    second = start("ingest", "--url", broker_url, "--root", s3.url, "--once")
    assert second.process.wait(60) == 1
    (line,) = second.said.splitlines()
    assert line.endswith(f"another ingest runs in {s3.url}; wait until it is done")
    add_events(redis_client, "celery", LIVES[500:])
    first.until(lambda: "batch 1" in first.said)
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) == 0, first.said
    fold(s3.url)
    exact(s3.url, len(LIVES))


def test_a_frozen_ingest_that_wakes_does_no_harm(s3, start, redis_client, broker_url):
    """Its lease has ended, another one has read on and trimmed; it goes on in the middle of what it did."""
    count = add_events(redis_client, "celery", lives(6_000))
    words = ("ingest", "--url", broker_url, "--root", s3.url, "--batch", "1500", "--reader", "r", "--trim")
    frozen = start(*words, "--interval", "0.2")
    frozen.until(lambda: frozen.said.count("batch ") >= 2)
    frozen.process.send_signal(signal.SIGSTOP)
    second = start(*words, "--once")
    assert second.process.wait(120) == 0, second.said
    count += add_events(redis_client, "celery", LIVES)
    frozen.process.send_signal(signal.SIGCONT)
    assert frozen.process.wait(120) == 1, frozen.said
    assert "another ingest has taken over in" in frozen.said.splitlines()[-1]
    third = start(*words, "--once")
    assert third.process.wait(120) == 0, third.said
    fold(s3.url)
    exact(s3.url, count)


def test_an_ingest_outlives_a_server_that_is_away(s3, start, redis_client, broker_url):
    add_events(redis_client, "celery", LIVES[:500])
    job = start("ingest", "--url", broker_url, "--root", s3.url, "--interval", "0.2", "--reader", "r", "--trim")
    job.until(lambda: "batch 0" in job.said)
    s3.stop()
    add_events(redis_client, "celery", LIVES[500:900])
    job.until(lambda: "it starts again in 2 s" in job.said)
    assert job.process.poll() is None, job.said
    s3.start()
    add_events(redis_client, "celery", LIVES[900:])
    wait_until(lambda: job.said.count("batch") >= 2, 120)
    assert SECRET not in job.said
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 0, job.said
    store = ObjectStore(s3.url)
    with store.locked(INGEST_LOCK):
        ArrowIngest(store, {"url": broker_url, "readerName": "r"}).run(threading.Event(), print, once=True)
    fold(store)
    exact(store, len(LIVES))


def test_a_service_keeps_tables_at_a_url(s3, start, redis_client, broker_url):
    add_events(redis_client, "celery", LIVES[:700])
    job = start("run", "--url", broker_url, "--root", s3.url, "--fresh", "0.5")

    def folded():
        return (
            sum(batch.num_rows for batch in Snapshot(s3.url).batches("messages", ["id"])) if Manifest.read(s3.url).folded else 0
        )

    job.until(lambda: folded() > 0)
    second = start("run", "--url", broker_url, "--root", s3.url)
    assert second.process.wait(60) == 1
    assert "another service runs in" in second.said
    add_events(redis_client, "celery", LIVES[700:])
    messages = len({event.id for event in LIVES})
    job.until(lambda: folded() == messages)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 0, job.said
    assert opened(s3.url).once("status.json")["version"] > 0
    fold(s3.url)
    exact(s3.url, len(LIVES))


def test_no_secret_is_in_what_is_stored(s3, job, redis_client, broker_url, tmp_path):
    add_events(redis_client, "celery", LIVES)
    job("ingest", "--url", broker_url, "--root", s3.url, "--once")
    job("aggregate", "--root", s3.url)
    job("check", "--root", s3.url)
    store = ObjectStore(s3.url)
    assert not [name for name in store.names() if SECRET.encode() in (store.read(name) or b"")]
    with pytest.raises(InvalidArgument, match="give credentials by environment") as caught:
        job("aggregate", "--root", f"s3://key:{SECRET}@lake/celery")
    assert SECRET not in str(caught.value)


def test_what_cannot_be_is_one_line(s3, job, redis_client, broker_url, monkeypatch):
    pytest.importorskip("pyspark", reason="needs the extra `spark`")
    monkeypatch.setattr(jobs, "check_installed", lambda: None)
    add_events(redis_client, "celery", LIVES[:10])
    for words in (("ingest", "--engine", "spark"), ("run", "--engine", "spark"), ("replay",)):
        with pytest.raises(InvalidArgument, match=r"only with hadoop-aws") as caught:
            job(*words, "--url", broker_url, "--root", s3.url)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidArgument, match=r"s3://, gs://, abfs://"):
        job("aggregate", "--root", "ftp://lake/celery")
    with pytest.raises(TablesUnusable, match=r"s3://nowhere/celery: .*") as caught:
        job("ingest", "--url", broker_url, "--root", "s3://nowhere/celery", "--once")
    assert "\n" not in str(caught.value)
    s3.stop()
    with pytest.raises(ObjectStoreFailed, match=s3.url):
        job("aggregate", "--root", s3.url)


def test_spark_traces_messages_at_a_url(spark, s3, redis_client, broker_url, tmp_path, monkeypatch):
    from functools import partial

    from celery_redis_plus.spark import tables

    # The JVM, from which Python processes have their environment, is older than this test.
    for name, value in s3.env.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    add_events(redis_client, "celery", LIVES)
    for root in (s3.url, str(tmp_path / "tables")):
        storage = opened(root)
        with storage.locked(INGEST_LOCK):
            ArrowIngest(storage, {"url": broker_url}).run(threading.Event(), print, once=True)
    assert tables.aggregate(spark, s3.url).messages == fold(tmp_path / "tables").messages
    equal(s3.url, tmp_path / "tables")
    assert [finding for finding in check(s3.url, partial(tables.inspect, spark)) if finding.wrong] == []
    with pytest.raises(InvalidArgument, match="only with hadoop-aws"):
        tables.read(spark, s3.url, "messages")


def test_a_store_that_fails_once_is_tried_again_with_another_lease(s3, redis_client, broker_url, monkeypatch):
    """Whether its last write has come through is not known: what comes late counts for nothing."""
    add_events(redis_client, "celery", LIVES)
    write, failed, said = ObjectStore.write, [], []

    def fails(self, name, content):
        write(self, name, content)
        if name.endswith("_committed.json") and not failed:
            failed.append(name)
            raise ObjectStoreFailed("no answer")

    monkeypatch.setattr(ObjectStore, "write", fails)
    stop = threading.Event()
    stored = []

    def tell(number, batch):
        stored.append((number, batch.rows))
        if sum(rows for _, rows in stored) + 200 >= len(LIVES):
            stop.set()

    words = ["ingest", "--url", broker_url, "--root", s3.url, "--batch", "200", "--interval", "0.1"]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(words)
    arguments.root = opened(arguments.root)
    ingest_jobs.read_here(arguments, tell, stop, said.append)
    assert said == ["no answer; it starts again in 1 s"]
    # What was written before the failure is there, and counts.
    assert stored[0][0] == 1
    with arguments.root.locked(INGEST_LOCK):
        ArrowIngest(arguments.root, {"url": broker_url}).run(threading.Event(), print, once=True)
    fold(s3.url)
    exact(s3.url, len(LIVES))
