"""Of several writers at a URL one holds the lease, whatever is slow or dies; a replaced one writes what counts for nothing."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark import lease as lease_module
from celery_redis_plus.spark.lease import HOLDING, RELEASED, Lease, terms
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.storage import INGEST_LOCK, TABLES_LOCK
from tests.spark.rivals import assert_one_works_at_a_time
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in (("BEAT_S", 0.1), ("SILENT_S", 1.5), ("POLL_S", 0.05)):
        monkeypatch.setattr(lease_module, name, seconds)


@pytest.fixture
def store(s3):
    return ObjectStore(s3.url)


def test_a_second_one_is_refused_and_the_first_is_not_disturbed(store, s3):
    with store.locked(INGEST_LOCK):
        began = machine_time()
        with pytest.raises(TablesUnusable, match=r"another ingest runs in s3://.*celery; wait until it is done") as caught:
            ObjectStore(s3.url).locked(INGEST_LOCK).__enter__()
        assert machine_time() - began < lease_module.SILENT_S, "it is seen to be alive"
        assert "\n" not in str(caught.value)
        store.verify(INGEST_LOCK)
        with ObjectStore(s3.url).locked(TABLES_LOCK):
            """Another kind of work is not kept out."""
    with ObjectStore(s3.url).locked(INGEST_LOCK):
        """The next one begins at once."""
    (last,) = terms(store, "ingest.lock")
    assert (last.state, last.number) == (RELEASED, 2)


def test_one_that_died_is_waited_for_and_replaced(store, s3):
    dead = Lease(store, "x", "work")
    dead.acquire(lambda _earlier: "a")
    dead.fall_silent()
    found = []
    following = Lease(ObjectStore(s3.url), "x", "work")
    following.acquire(lambda earlier: found.append([term.base for term in earlier]) or "b")
    assert found == [["a"]]
    assert following.number == dead.number + 1
    following.verify()
    with pytest.raises(TablesUnusable, match="another work has taken over"):
        dead.verify()
    following.release()


def test_of_many_that_begin_at_once_one_works_at_a_time(s3):
    assert_one_works_at_a_time(s3.url)


def test_two_that_ask_at_the_same_moment_see_each_other(s3, monkeypatch):
    is_alone, both_ask, looked = Lease._is_alone, threading.Barrier(2), []  # noqa: SLF001

    def look(self, silent):
        if self not in looked:
            looked.append(self)
            both_ask.wait(30)
        return is_alone(self, silent)

    monkeypatch.setattr(Lease, "_is_alone", look)
    leases, holding = [Lease(ObjectStore(s3.url), "x", "work") for _ in range(2)], []

    def acquire(lease):
        with suppress(TablesUnusable):
            lease.acquire(lambda _earlier: "")
            holding.append(lease)

    threads = [threading.Thread(target=acquire, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(looked) == 2
    assert len(holding) == 1
    for lease in leases:
        lease.release()


def test_a_version_of_one_that_was_replaced_does_not_count(store, s3):
    """It was frozen before it wrote, and wakes when others have gone on from where it was."""
    with store.locked():
        Manifest(version=1, newest_us=1).write(store)
    slow, other = ObjectStore(s3.url), ObjectStore(s3.url)
    frozen = slow.locked()
    frozen.__enter__()
    slow.leases[TABLES_LOCK[0]].fall_silent()
    with other.locked():
        assert Manifest.read(other).newest_us == 1
        with pytest.raises(TablesUnusable, match="has taken over"):
            Manifest(version=2, newest_us=666).write(slow)
        assert Manifest.read(store).newest_us == 1
        Manifest(version=2, newest_us=2).write(other)
    assert Manifest.read(store).newest_us == 2
    # It lets go late, and writes again.
    with pytest.raises(TablesUnusable, match="has taken over"):
        Manifest(version=9, newest_us=666).write(slow)
    frozen.__exit__(None, None, None)
    assert Manifest.read(store).newest_us == 2
    with other.locked():
        assert Manifest.read(other).newest_us == 2


def test_a_micro_batch_of_one_that_was_replaced_does_not_count(store, s3):
    def marker(who, number, rows):
        folder = who.batch_folder("run", number)
        who.write_json(f"{folder}/_committed.json", {"rows": rows, "files": {}, "offset": {}})
        who.verify(INGEST_LOCK)

    def rows():
        return [(number, store.once(f"{folder}/_committed.json")["rows"]) for _, number, folder in store.batch_folders()]

    slow, other = ObjectStore(s3.url), ObjectStore(s3.url)
    frozen = slow.locked(INGEST_LOCK)
    frozen.__enter__()
    marker(slow, 0, 10)
    slow.leases[INGEST_LOCK[0]].fall_silent()
    with other.locked(INGEST_LOCK):
        assert rows() == [(0, 10)]
        with pytest.raises(TablesUnusable, match="has taken over"):
            marker(slow, 1, 666)
        assert rows() == [(0, 10)], "also before the next one has stored its own"
        marker(other, 1, 20)
        assert rows() == [(0, 10), (1, 20)]
    with other.locked(INGEST_LOCK):
        marker(other, 2, 30)
    assert rows() == [(0, 10), (1, 20), (2, 30)]


def test_micro_batches_are_left_alone_while_it_is_not_known_which_count(store, s3):
    with store.locked(INGEST_LOCK):
        folder = store.batch_folder("run", 0)
        store.write_json(f"{folder}/_committed.json", {"rows": 1, "files": {}, "offset": {}})
    seen = []

    def base(_earlier):
        seen.append(store.batch_folders())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lease(ObjectStore(s3.url), "ingest.lock", "ingest").acquire(base)
    assert seen == [[]]
    with ObjectStore(s3.url).locked(INGEST_LOCK):
        assert len(store.batch_folders()) == 1


def test_a_store_that_is_away_ends_no_lease(store, s3):
    with store.locked(INGEST_LOCK):
        s3.stop()
        time.sleep(3 * lease_module.BEAT_S)
        s3.start()
        (before,) = terms(store, "ingest.lock")
        wait_until(lambda: terms(store, "ingest.lock")[0].content != before.content, 30)
        store.verify(INGEST_LOCK)
        assert before.state == HOLDING
