"""`spark run` but for Spark: the tables follow what ingest stores, and the service tells how it is. No Java."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.spark import service as service_module
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.fold import Folded
from celery_redis_plus.spark.health import Health, served
from celery_redis_plus.spark.ingest_process import IngestProcess
from celery_redis_plus.spark.lag import Lag, Source
from celery_redis_plus.spark.losses import TRIMMED, Loss
from celery_redis_plus.spark.repartition import EVENTS_IN_MEMORY
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.service import Service
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.stored_events import StoredEvents
from tests.support.waiting import wait_until

LIVES = lives(400)
PATIENCE_S = 60
#: An ingest that stores nothing, and ends as it should.
IDLE = (sys.executable, "-c", "import sys; sys.stdin.read()")


@pytest.fixture
def service(tmp_path, broker_url):
    """Run a service in a thread; `said` has its lines."""
    said: list[str] = []
    running = Service(tmp_path, Source(broker_url, "", "*"), IngestProcess(IDLE, os.environ), fresh_s=0.2, say=said.append)
    running.said = said
    stop = threading.Event()
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    yield running
    stop.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_tables_follow_and_lag_freshness_and_losses_are_told(redis_client, broker_url, tmp_path, monkeypatch, request):
    monkeypatch.setattr(service_module, "LINE_EVERY_S", 0.3)
    count = add_events(redis_client, "celery", LIVES)
    stored, position = StoredEvents(tmp_path), position_in(opened(tmp_path))
    service = request.getfixturevalue("service")
    wait_until(lambda: service.health.lag == {"celery": count}, PATIENCE_S)

    stored.add({"celery": LIVES[:500]}, [Loss("celery", TRIMMED, START_MS, 1, 7, 7, None, START_MS * 1000, START_MS * 1000)])
    wait_until(lambda: service.health.events == 500, PATIENCE_S)
    wait_until(lambda: not service.health.waiting_events, PATIENCE_S)
    assert service.health.freshness_s > 86_400, "the events are of last year, and some are missing"
    assert not service.health.well
    assert service.health.losses == {"trimmed": 7}

    stored.add({"celery": LIVES[500:]})
    position.plan(1, {"celery": f"{START_MS}-{count}"})
    position.commit(1)
    wait_until(lambda: service.health.freshness_s == 0.0, PATIENCE_S)
    assert service.health.events == count
    assert service.health.well
    add_events(redis_client, "celery", LIVES[:1])
    wait_until(lambda: service.health.lag == {"celery": 1}, PATIENCE_S)
    assert service.health.lag_seconds["celery"] > 86_400, "the event that waits is of last year"
    assert 0 < service.health.freshness_s < 60, "nothing was missing a moment ago"
    wait_until(lambda: any("lag 0 events, 0 s, freshness 0 s" in line and "7 lost" in line for line in service.said), PATIENCE_S)
    status = tmp_path / "status.json"
    wait_until(lambda: json.loads(status.read_text(encoding="utf-8"))["lag"] == {"celery": 1}, PATIENCE_S)


def test_an_event_of_a_clock_that_was_ahead_makes_no_tables_fresh(redis_client, broker_url, tmp_path, request):
    """The broker's clock was a day ahead for a moment: tables that fall behind are told all the same."""
    ahead_us = (time.time_ns() // 1000) + 86_400_000_000
    StoredEvents(tmp_path).add({"celery": [replace(LIVES[0], ts=ahead_us), *LIVES[1:]]})
    add_events(redis_client, "celery", LIVES)
    service = request.getfixturevalue("service")
    wait_until(lambda: not service.health.waiting_events and service.health.events, PATIENCE_S)
    assert service.health.freshness_s > 86_400
    assert not service.health.well


def test_a_full_disk_does_not_end_it(service, monkeypatch):
    real = service.storage.write_json

    def full(name, content):
        if name == "status.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        real(name, content)

    wait_until(lambda: service.health.version is not None and not service.health.error, PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(service.storage, "write_json", full)
        wait_until(lambda: os.strerror(errno.ENOSPC) in service.health.error, PATIENCE_S)
        assert not service.health.well
    wait_until(lambda: not service.health.error, PATIENCE_S)
    assert any("No space left" in line and line.endswith("it is looked at again") for line in service.said)


def test_an_ingest_that_ends_again_and_again_is_told_until_all_is_stored(redis_client, broker_url, tmp_path):
    count = add_events(redis_client, "celery", LIVES)
    position, stop = position_in(opened(tmp_path)), threading.Event()
    fails = IngestProcess((sys.executable, "-c", "raise SystemExit(3)"), os.environ)
    service = Service(tmp_path, Source(broker_url, "", "*"), fails, fresh_s=0.2, say=print)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: service.health.ingest_error.startswith("ingest ended with status 3"), PATIENCE_S)
        assert service.health.lag == {"celery": count}
        position.plan(0, {"celery": f"{START_MS}-{count}"})
        position.commit(0)
        wait_until(lambda: service.health.lag == {"celery": 0}, PATIENCE_S)
        wait_until(lambda: not service.health.ingest_error, PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_at_its_end_it_does_not_ask_a_broker_that_may_hang(tmp_path, broker_url, monkeypatch):
    asked, stop = [], threading.Event()

    def lag_of(_source, _stored):
        asked.append(stop.is_set())
        stop.set()
        return Lag()

    monkeypatch.setattr(service_module, "lag_of", lag_of)
    Service(tmp_path, Source(broker_url, "", "*"), IngestProcess(IDLE, os.environ), fresh_s=0.2, say=print).run(stop)
    assert asked == [False]


def test_a_store_that_answers_slowly_does_not_keep_it_from_ending(tmp_path, broker_url, monkeypatch):
    folding, answer, stop = threading.Event(), threading.Event(), threading.Event()

    def fold(*_arguments, **_options):
        folding.set()
        assert answer.wait(PATIENCE_S)
        return Folded(1)

    monkeypatch.setattr(service_module, "fold", fold)
    monkeypatch.setattr(service_module, "END_WITHIN_S", 0.2)
    ingest = IngestProcess(IDLE, os.environ)
    service = Service(tmp_path, Source(broker_url, "", "*"), ingest, fresh_s=0.2, say=print)
    ended = []
    runs = threading.Thread(target=lambda: ended.append(service.run(stop)))
    runs.start()
    try:
        assert folding.wait(PATIENCE_S)
        stop.set()
        runs.join(PATIENCE_S)
        assert (ended, ingest.running, ingest.keep_up()) == ([False], False, "")
        assert not ingest.running
    finally:
        answer.set()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "service"]
    thread.join(PATIENCE_S)


def has_locked(folder, stack):
    """Return whether the folder was free: then it is locked until `stack` ends."""
    try:
        stack.enter_context(folder.locked())
    except TablesUnusable:
        return False
    return True


def test_a_folder_that_somebody_else_uses_is_waited_for(service, tmp_path):
    with ExitStack() as stack:
        # The service may be at work there just now.
        wait_until(lambda: has_locked(opened(tmp_path), stack), PATIENCE_S)
        wait_until(lambda: "another aggregation or compaction runs" in service.health.error, PATIENCE_S)
        assert not service.health.well
    wait_until(lambda: not service.health.error, PATIENCE_S)
    assert any(line.startswith("aggregation failed: another") and line.endswith("it is tried again") for line in service.said)


def test_health_and_metrics_are_served():
    health = Health(
        wanted_s=30, ingesting=True, lag={'a"b': 3}, lag_seconds={'a"b': 1.5}, freshness_s=2.5, events=10, losses={"trimmed": 4}
    )
    with served("127.0.0.1:0", lambda: health) as port:

        def get(path):
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.read().decode()

        assert json.loads(get("/health"))["well"] is True
        metrics = get("/metrics")
        assert 'celery_redis_plus_spark_lag_events{queue="a\\"b"} 3\n' in metrics
        assert 'celery_redis_plus_spark_lag_seconds{queue="a\\"b"} 1.5\n' in metrics
        assert "celery_redis_plus_spark_freshness_seconds 2.5\n" in metrics
        assert 'celery_redis_plus_spark_lost_events{why="trimmed"} 4\n' in metrics
        assert metrics.count("# TYPE") == metrics.count("# HELP") == 12
        # Each event moves a counter, and any name that Redis takes is one for Prometheus.
        health.events, health.lag = 1_234_567_891, {"gr\udcf6n": 1_234_568}
        metrics = get("/metrics")
        assert "celery_redis_plus_spark_events_total 1234567891\n" in metrics
        assert 'celery_redis_plus_spark_lag_events{queue="gr\\\\udcf6n"} 1234568\n' in metrics
        assert json.loads(get("/health"))["lag"] == health.lag
        for path in ("/health?verbose=1", "/metrics"):
            with urlopen(Request(f"http://127.0.0.1:{port}{path}", method="HEAD"), timeout=30) as answer:
                assert (answer.status, answer.read()) == (200, b"")
        health.ingesting = False
        for path, status in (("/health", 503), ("/x", 404)):
            with pytest.raises(HTTPError) as refused:
                get(path)
            assert refused.value.code == status
            refused.value.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_health_is_served_by_ipv6():
    with served("[::1]:0", lambda: Health(1.0)) as port, pytest.raises(HTTPError) as refused:
        urlopen(f"http://[::1]:{port}/health", timeout=30)
    assert refused.value.code == 503
    refused.value.close()


def test_a_service_looks_around_while_more_and_more_comes(tmp_path, broker_url, monkeypatch):
    """Storage is so slow that with each aggregation there are new events."""
    stop, folds, kept_up = threading.Event(), [], []

    def fold(*_arguments, **_options):
        folds.append(1)
        if len(folds) == 5:
            stop.set()
        return Folded(1, events=EVENTS_IN_MEMORY)

    ingest = IngestProcess(IDLE, os.environ)
    monkeypatch.setattr(service_module, "fold", fold)
    monkeypatch.setattr(service_module, "POLL_S", 0.01)
    monkeypatch.setattr(ingest, "keep_up", lambda: kept_up.append(len(folds)))
    service = Service(tmp_path, Source(broker_url, "", "*"), ingest, fresh_s=60.0, say=print)
    service.run(stop)
    assert kept_up == [0, 1, 2, 3, 4]
    assert service.health.events == 6 * EVENTS_IN_MEMORY


@pytest.mark.parametrize("listen", ["x", "127.0.0.1:x", "127.0.0.1:99999999"])
def test_an_address_that_is_none_is_refused(listen):
    with pytest.raises(InvalidArgument, match="HOST:PORT"), served(listen, lambda: Health(1.0)):
        pass


def test_what_was_missed_before_a_start_is_soon_in_the_tables(tmp_path, broker_url, monkeypatch):
    """After a kill the tables were a minute old with `--fresh 30`: the second aggregation has what came meanwhile."""
    times, stop = list[float](), threading.Event()

    def aggregate(_service, _stop):
        times.append(time.monotonic())
        if len(times) == 3:
            stop.set()
        return 0

    monkeypatch.setattr(service_module, "POLL_S", 0.02)
    monkeypatch.setattr(Service, "_aggregate", aggregate)
    Service(tmp_path, Source(broker_url, "", "*"), IngestProcess(IDLE, os.environ), fresh_s=1.5, say=print).run(stop)
    assert times[1] - times[0] < 1.5 <= times[2] - times[1]
