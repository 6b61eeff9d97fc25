"""Tables at `gs://` and `abfs://`: exact, by one writer at a time, on servers of these interfaces. No Java."""

from __future__ import annotations

import argparse
import threading
import time

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

from celery_redis_plus.errors import InvalidArgument, ObjectStoreFailed
from celery_redis_plus.spark import jobs
from celery_redis_plus.spark import lease as lease_module
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.lease import Lease, terms
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.storage import TABLES_LOCK
from tests.spark.rivals import assert_one_works_at_a_time
from tests.support import clouds
from tests.support.event_streams import add_events, lives

LIVES = lives(600)
QUICK = {"BEAT_S": 0.1, "SILENT_S": 1.5, "POLL_S": 0.05}


@pytest.fixture(params=["google", "azure"])
def cloud(request, tmp_path, monkeypatch):
    server = getattr(clouds, request.param)(tmp_path)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    for name, seconds in QUICK.items():
        monkeypatch.setattr(lease_module, name, seconds)
    yield server
    server.stop()


def exact(root, count):
    rows = [
        tuple(row.values()) for batch in Snapshot(root).batches("events", ["queue", "epoch", "n"]) for row in batch.to_pylist()
    ]
    assert len(rows) == len(set(rows)) == count


def test_from_the_stream_to_the_report(cloud, redis_client, broker_url, tmp_path):
    def job(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said = []
        assert jobs.run(parser.parse_args([*words, "--root", cloud.url]), said.append) == 0, said
        return "\n".join(said)

    count = 0
    for events in (LIVES[:1000], LIVES[1000:]):
        count += add_events(redis_client, "celery", events)
        assert f"{len(events):,} events in" in job("ingest", "--url", broker_url, "--once", "--batch", "700")
        assert "messages of 2025-11-24" in job("aggregate")
    job("compact")
    assert job("aggregate") == "nothing new"
    exact(cloud.url, count)
    assert "WRONG" not in job("check")
    assert "COMPLETED" in job("report", "--output", str(tmp_path / "report.html"))
    store = ObjectStore(cloud.url)
    assert not [name for name in store.names() if clouds.KEY.encode() in (store.read(name) or b"")]


def test_of_many_that_begin_at_once_one_works_at_a_time(cloud):
    assert_one_works_at_a_time(cloud.url)


def test_a_holder_is_seen_at_each_moment_of_its_beat(cloud, monkeypatch):
    """Azure's store shows an object that is written anew empty until it is whole."""
    monkeypatch.setattr(lease_module, "BEAT_S", 0.001)
    lease = Lease(ObjectStore(cloud.url), "x", "work")
    lease.acquire(lambda _earlier: "a")
    other = ObjectStore(cloud.url)
    until = time.monotonic() + 5
    looks = 0
    while time.monotonic() < until:
        assert [(term.number, term.base) for term in terms(other, "x")] == [(1, "a")]
        looks += 1
    assert looks > 5
    lease.release()


def test_a_holder_that_dies_in_a_beat_is_replaced_by_one_that_knows_what_counted(cloud, monkeypatch):
    store, write = ObjectStore(cloud.url), ObjectStore.write
    with store.locked():
        Manifest(version=1, newest_us=1).write(store)
    died = threading.Event()

    def begun(self, name, content):
        if threading.current_thread() is not threading.main_thread():
            # As Azure's store has it, where the process is killed in the middle.
            write(self, name, b"")
            died.set()
            raise ObjectStoreFailed("killed")
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "write", begun)
        with store.locked():
            assert died.wait(30)
            store.leases[TABLES_LOCK[0]].fall_silent()
            assert Manifest.read(ObjectStore(cloud.url)).newest_us == 1
            patch.setattr(Lease, "release", lambda _lease: None)
    assert Manifest.read(ObjectStore(cloud.url)).newest_us == 1
    with ObjectStore(cloud.url).locked():
        assert Manifest.read(ObjectStore(cloud.url)).newest_us == 1


@pytest.mark.parametrize("url", ["abfs://lake:SECRET@account.dfs.core.windows.net/x", "gs://lake/x?access_token=SECRET"])
def test_a_secret_in_a_url_is_refused(url):
    with pytest.raises(InvalidArgument) as caught:
        ObjectStore(url)
    assert "SECRET" not in str(caught.value)
