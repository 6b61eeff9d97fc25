"""Tables at a URL are one version of all tables, whole, whatever is killed. No Java."""

from __future__ import annotations

import argparse
import re

import pytest

pytest.importorskip("pandas", reason="needs the extra `spark`")

import pandas as pd
from pyarrow import dataset

from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.spark import jobs, leftovers, object_store, publication
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.manifest import Manifest, files
from celery_redis_plus.spark.publication import publish
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.storage import Storage
from celery_redis_plus.spark.summaries import Period, summaries
from tests.support.event_streams import lives
from tests.support.stored_events import StoredEvents

LIVES = lives(900)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def stored(root):
    made = StoredEvents(root)
    made.add({"celery": LIVES[:1000]})
    fold(root)
    return made


def equal(one, other):
    """Compare all figures of two folders."""
    first, second = (summaries(Snapshot(where), period=Period()) for where in (one, other))
    assert first.keys() == second.keys()
    for name, rows in first.items():
        pd.testing.assert_frame_equal(rows, second[name])


def names(url):
    return set(opened(url).names())


def test_the_tables_at_a_url_are_those_of_the_folder(stored, root, url):
    check(root)
    first = publish(root, url)
    assert (first.version, first.copied > 5, first.removed) == (1, True, 0)
    equal(url, root)
    assert Snapshot(url).checks().equals(Snapshot(root).checks())
    assert publish(root, url).copied == 0

    stored.add({"celery": LIVES[1000:], "mail": LIVES[:300]})
    fold(root)
    second = publish(root, url)
    assert 0 < second.copied < len(names(url))
    equal(url, root)
    store = opened(url)
    for table in ("messages", "events", "queues"):
        here = dataset.dataset(files(root, table)).count_rows()
        places = [file.replace(store.where, store.path) for file in Snapshot(url).files(table)]
        assert dataset.dataset(places, filesystem=store.filesystem).count_rows() == here


def test_events_that_are_in_no_table_yet_are_not_published(stored, root, url):
    stored.add({"celery": LIVES[1000:]})
    publish(root, url)
    assert sum(batch.num_rows for batch in Snapshot(url).batches("events", ["n"])) == 1000
    assert sum(batch.num_rows for batch in Snapshot(root).batches("events", ["n"])) == len(LIVES)


def test_old_files_stay_for_their_readers_and_go_then(stored, root, url, monkeypatch):
    publish(root, url)
    reader = Snapshot(url)
    stored.add({"celery": LIVES[1000:]})
    fold(root)
    compact(root)
    assert publish(root, url).removed == 0
    assert summaries(reader, period=Period())["headline"]["published"].tolist()[0] > 0
    for module in (leftovers, publication):
        monkeypatch.setattr(module, "KEPT_S", -60.0)
    assert publish(root, url).removed > 0
    equal(url, root)
    left = {name for name in names(url) if name.endswith(".parquet")}
    manifest = Manifest.read(root)
    assert left == manifest.referenced() - set(manifest.superseded)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_publication_that_is_killed_changes_nothing_and_is_done_again(stored, root, url, monkeypatch, after):
    publish(root, url)
    before = summaries(Snapshot(url), period=Period())["headline"]["published"].tolist()
    stored.add({"celery": LIVES[1000:]})
    fold(root)
    upload, left = Storage.upload, [after]

    class KilledError(Exception):
        pass

    def interrupted(self, path, name):
        if not left[0]:
            # Half of the file is there.
            self.write(name, path.read_bytes()[:100])
            raise KilledError
        left[0] -= 1
        upload(self, path, name)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "upload", interrupted)
        with pytest.raises(KilledError):
            publish(root, url)
    assert summaries(Snapshot(url), period=Period())["headline"]["published"].tolist() == before
    publish(root, url)
    equal(url, root)


def test_a_version_that_is_replaced_meanwhile_is_not_published(stored, root, url, monkeypatch):
    copied, upload = [], Storage.upload

    def slow(self, path, name):
        if not copied:
            stored.add({"celery": LIVES[1000:]})
            fold(root)
            compact(root)
            for module in (leftovers, publication):
                monkeypatch.setattr(module, "KEPT_S", -60.0)
            fold(root)
        copied.append(name)
        upload(self, path, name)

    monkeypatch.setattr(Storage, "upload", slow)
    assert publish(root, url).version == Manifest.read(root).version
    equal(url, root)


def test_one_place_has_the_tables_of_one_folder(stored, root, url, tmp_path):
    publish(root, url)
    StoredEvents(tmp_path / "other").add({"celery": LIVES[:10]})
    fold(tmp_path / "other")
    with pytest.raises(TablesUnusable, match="has other tables"):
        publish(tmp_path / "other", url)


def test_the_jobs(stored, root, url, tmp_path):
    said = []

    def job(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said.clear()
        assert jobs.run(parser.parse_args(words), said.append) == 0
        return said[0]

    assert re.fullmatch(
        rf"version 1 at {re.escape(url)}: \d+ files copied \([\d,]+ bytes\)", job("publish", "--root", str(root), "--to", url)
    )
    assert "COMPLETED" in job("report", "--root", url, "--output", str(tmp_path / "report.html"))
    with pytest.raises(TablesUnusable, match=r"has the copy of a folder"):
        job("compact", "--root", url)


def test_what_is_wrong_is_one_line(stored, root, url):
    with pytest.raises(TablesUnusable, match="has no tables yet"):
        Snapshot(url)
    publish(root, url)
    opened(url).write_json("manifest.json", {"tables_version": 1})
    with pytest.raises(TablesUnusable, match="older release"):
        Snapshot(url)
    opened(url).write_json("manifest.json", {"tables_version": 99})
    with pytest.raises(TablesUnusable, match="Upgrade"):
        Snapshot(url)
    if url.startswith("s3"):
        with pytest.raises(TablesUnusable, match=r"s3://nowhere/celery: .*") as caught:
            publish(root, "s3://nowhere/celery")
        assert "\n" not in str(caught.value)
        assert "secret-of-the-test" not in str(caught.value)


@pytest.mark.parametrize("place", ["s3://KEY:SECRET@lake/celery", "s3://lake?endpoint_override=x", "ftp://x/y", "s3://"])
def test_a_url_that_holds_a_secret_or_names_nothing_is_refused(place):
    with pytest.raises(InvalidArgument) as caught:
        object_store.ObjectStore(place)
    assert "SECRET" not in str(caught.value)
