"""The tables as Delta tables: readers that know nothing of this package read the same, whatever is killed. No Java."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from datetime import date

import pytest

pytest.importorskip("deltalake", reason="needs the extra `lake`")

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, transaction
from deltalake.exceptions import TableNotFoundError

from celery_redis_plus.errors import InvalidArgument, SparkUnavailable, TablesUnusable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark import delta_log, jobs, leftovers
from celery_redis_plus.spark import lease as lease_module
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.expiry import expire
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.forgetting import forget
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS, Layers
from celery_redis_plus.spark.manifest import TABLES, Manifest
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.publication import publish
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.storage import INGEST_LOCK, TABLES_LOCK
from tests.docs.blocks import ROOT, of_page
from tests.support.event_streams import add_events, lives
from tests.support.spark_jobs import Job
from tests.support.stored_events import StoredEvents

#: In a folder; on S3 as well once a week.
pytestmark = pytest.mark.sample(1)
LIVES = lives(600)
DAY = date(2025, 11, 24)
#: The first ones are trimmed before they are read.
TRIMMED = 7


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leases end in a second."""
    for name, seconds in {"BEAT_S": 0.1, "SILENT_S": 1.0, "POLL_S": 0.05}.items():
        monkeypatch.setattr(lease_module, name, seconds)


class Stored:
    """Events that an ingest has stored, folder or store alike."""

    def __init__(self, client, broker_url, root):
        self.client = client
        self.source = {"url": broker_url, "failOnDataLoss": "false"}
        self.root = root

    def add(self, queues, *, trimmed=0):
        for queue, events in queues.items():
            add_events(self.client, queue, events)
        if trimmed:
            with EventLog(self.source["url"]) as log:
                stream = log.keys.queue("celery").events
            self.client.xtrim(stream, maxlen=self.client.xlen(stream) - trimmed, approximate=False)
        store = opened(self.root)
        with store.locked(INGEST_LOCK):
            ArrowIngest(store, self.source).run(threading.Event(), print, once=True)


@pytest.fixture
def stored(redis_client, broker_url, url):
    """Tables of three versions, and a micro-batch that is in none, as they were before there were logs."""
    made = Stored(redis_client, broker_url, url)
    for start in range(0, 900, 300):
        made.add({"celery": LIVES[start : start + 300]}, trimmed=0 if start else TRIMMED)
        fold(url)
    made.add({"celery": LIVES[900:1200]})
    return made


@pytest.fixture
def job():
    def run(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said = []
        assert jobs.run(parser.parse_args(words), said.append) == 0, said
        return "\n".join(said)

    return run


def rows(table):
    """Return rows in an order that is theirs."""
    return table.sort_by([(name, "ascending") for name in table.column_names if not name.endswith("payload")])


#: What has nothing to do with where the tables are.
in_a_folder = pytest.mark.parametrize("url", ["file"], indirect=True)


def own_events(snapshot):
    return [file for files in snapshot.manifest.events.values() for file in files]


def expected(where):
    """Return what readers by the manifest have, without events that wait for an aggregation."""
    snapshot = Snapshot(where)
    found = {"losses": snapshot.losses()}
    for table in (EVENTS, *TABLES):
        source = snapshot.dataset(table) if table != EVENTS else snapshot.storage.dataset(own_events(snapshot))
        found[table] = source.to_table() if source else LAYOUTS[table].schema.empty_table()
    return found


def same(where):
    """Compare each Delta table, at the versions that belong together, with the tables."""
    own = expected(where)
    logs = delta_log.tables(where)
    assert logs.keys() == own.keys()
    for table, log in logs.items():
        read = log.to_pyarrow_dataset().to_table().select(own[table].column_names)
        assert rows(read.cast(own[table].schema)).equals(rows(own[table])), table
        assert log.version() == DeltaTable(log.table_uri, storage_options=delta_log.storage_options(where)).version()
    return own


def test_each_job_keeps_the_delta_tables_equal(stored, url, monkeypatch):
    monkeypatch.setattr(leftovers, "KEPT_S", -60.0)
    delta_log.switch_on(url)
    assert same(url)["events"].num_rows == 900 - TRIMMED
    fold(url)
    assert same(url)["events"].num_rows == 1200 - TRIMMED
    stored.add({"celery": LIVES[1200:], "mail": LIVES[:100]})
    fold(url)
    fold(url, rebuild=True)
    same(url)
    compact(url)
    same(url)
    first = same(url)["messages"].column("id")[0].as_py()
    assert forget(url, f"id = '{first}'").messages >= 1
    assert first not in same(url)["messages"].column("id").to_pylist()
    assert expire(url, date(2025, 11, 25)).days
    assert same(url)["messages"].num_rows < 150
    assert same(url)["losses"].num_rows >= 2
    assert [finding for finding in check(url, skip=("losses", "sums")) if finding.wrong] == []


def test_polars_duckdb_and_pandas_read_them(stored, url):
    polars = pytest.importorskip("polars")
    delta_log.switch_on(url)
    fold(url)
    own = expected(url)["messages"]
    options = delta_log.storage_options(url)
    read = polars.scan_delta(f"{opened(url)}/messages", storage_options=options)
    states = dict(read.group_by("state").len().collect().iter_rows())
    logged = delta_log.tables(url)["messages"]
    messages = logged.to_pyarrow_dataset()
    assert dict(duckdb.sql("SELECT state, count(*) FROM messages GROUP BY state").fetchall()) == states
    assert logged.to_pandas()["state"].value_counts().to_dict() == states
    assert sum(states.values()) == messages.count_rows() == own.num_rows
    assert logged.to_pyarrow_table(filters=[("date", "=", DAY)]).num_rows == own.num_rows
    assert logged.to_pyarrow_table(filters=[("date", ">", DAY)]).num_rows == 0, "the log's statistics skip files"


@in_a_folder
def test_what_is_forgotten_is_not_in_a_log_either(stored, url):
    delta_log.switch_on(url)
    fold(url)
    store = opened(url)
    before = expected(url)["messages"]
    forget(url, "task = 'shop.bill'")
    names = [name for name in store.names() if "_delta_log" in name]
    assert len(names) >= 12
    columns = ("id", "task", "error", "worker")
    texts = {word for column in columns for word in before.column(column).drop_null().unique().to_pylist()}
    for name in names:
        content = store.read(name).decode()
        assert not [text for text in texts if text in content], name


class KilledError(Exception):
    pass


class Steps:
    """Each write, removal, copy and commit is a step. The process dies before or after one, and gives no lease back."""

    def __init__(self, monkeypatch, *, before):
        #: Steps that are left to it.
        self.left = 10**9
        self.before = before
        for kind in (ObjectStore, TablesFolder):
            for name in ("write", "remove", "writer", "clear", "copy"):
                monkeypatch.setattr(kind, name, self.counted(getattr(kind, name)))
        monkeypatch.setattr(DeltaTable, "create_write_transaction", self.counted(DeltaTable.create_write_transaction))
        made = self.counted(transaction.create_table_with_add_actions)
        monkeypatch.setattr(transaction, "create_table_with_add_actions", made)
        release = lease_module.Lease.release
        monkeypatch.setattr(
            lease_module.Lease, "release", lambda lease: release(lease) if self.left > 0 else lease.fall_silent()
        )  # fmt: skip

    def counted(self, method):
        def run(*arguments, **options):
            # The beats of a lease go on beside it.
            if threading.current_thread() is not threading.main_thread():
                return method(*arguments, **options)
            self.left -= 1
            if self.left == 0 and self.before:
                raise KilledError
            done = method(*arguments, **options)
            if self.left == 0:
                raise KilledError
            return done

        return run


def whole(where):
    """Make sure that the versions of `delta.json` belong together: the rows of messages tell how many events there are."""
    logs = delta_log.tables(where)
    if not logs:
        return
    messages = logs["messages"].to_pyarrow_dataset().to_table(columns=["events"])
    events = logs["events"].to_pyarrow_dataset().to_table(columns=["queue", "epoch", "n"])
    assert (
        sum(messages.column("events").to_pylist()) == events.num_rows == len({tuple(row.values()) for row in events.to_pylist()})
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_step_it_is_exact(url, redis_client, broker_url, monkeypatch, before):
    monkeypatch.setattr(lease_module, "SILENT_S", 0.3)
    steps = Steps(monkeypatch, before=before)
    source = {"url": broker_url, "maxOffsetsPerTrigger": 17}
    if url.startswith("s3"):
        delta_log.switch_on(url)

    def run():
        store = opened(url)
        with store.locked(INGEST_LOCK):
            ArrowIngest(store, source).run(threading.Event(), print, once=True)
        delta_log.switch_on(store)
        fold(store)
        compact(store)

    count, kills = 0, 0
    for number in range(10):
        count += add_events(redis_client, "celery", LIVES[number * 20 : number * 20 + 20])
        steps.left = 5 + 5 * number
        try:
            run()
        except KilledError:
            kills += 1
        steps.left = 10**9
        whole(url)
    assert kills > 6
    run()
    assert same(url)["events"].num_rows == count
    assert [finding for finding in check(url) if finding.wrong] == []


@pytest.mark.sample(3)
@pytest.mark.parametrize(("after", "finished_by"), [("manifest", fold), ("first log", compact), ("logs", fold)])
def test_a_log_that_was_left_behind_is_completed_before_old_files_go(stored, url, monkeypatch, after, finished_by):
    delta_log.switch_on(url)
    before = {table: set(log.file_uris()) for table, log in delta_log.tables(url).items()}
    kind, commit = type(opened(url)), DeltaTable.create_write_transaction
    write, left = kind.write, [{"manifest": 0, "first log": 1}.get(after, 10)]

    def commits(log, *arguments, **options):
        if not left[0]:
            raise KilledError
        left[0] -= 1
        commit(log, *arguments, **options)

    def writes(storage, name, content):
        if name == delta_log.DELTA:
            raise KilledError
        write(storage, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commits)
        patch.setattr(kind, "write", writes)
        version = Manifest.read(url).version
        with pytest.raises(KilledError):
            fold(url)
    assert Manifest.read(url).version == version + 1, "the tables have changed"
    assert {table: set(log.file_uris()) for table, log in delta_log.tables(url).items()} == before
    whole(url)
    finished_by(url, kept_s=-60.0)
    same(url)


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_one_that_lost_its_lease_commits_nothing(stored, url, monkeypatch):
    """A folder's lock ends with its process only."""
    delta_log.switch_on(url)
    stored.add({"celery": LIVES[1200:]})
    commit, fallen = DeltaTable.create_write_transaction, []

    def slow(log, *arguments, **options):
        if not fallen:
            # It has read the log, and is frozen; another process takes over and goes on.
            fallen.append(log)
            store.leases[TABLES_LOCK[0]].fall_silent()
            fold(url)
        commit(log, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", slow)
    store = opened(url)
    with pytest.raises(TablesUnusable, match="has taken over"):
        fold(store, most=1)
    assert same(url)["events"].num_rows == len(LIVES) - TRIMMED


def test_a_folder_that_delta_lake_cannot_open_is_refused(tmp_path):
    root = tmp_path / "a%20b"
    StoredEvents(root).add({"celery": LIVES[:50]})
    fold(root)
    with pytest.raises(InvalidArgument, match="has a % in its path"):
        delta_log.switch_on(root)
    assert not delta_log.is_on(opened(root))


@in_a_folder
def test_logs_that_cannot_be_begun_are_not_on(stored, url, monkeypatch):
    def fails(*_arguments, **_options):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "follow", fails)
        with pytest.raises(OSError, match="no space left"):
            delta_log.switch_on(url)
    assert not delta_log.is_on(opened(url))
    fold(url)
    delta_log.switch_on(url)
    assert delta_log.is_on(opened(url))


@in_a_folder
def test_what_another_program_does_to_a_log_is_undone(stored, url):
    delta_log.switch_on(url)
    log = delta_log.tables(url)["messages"]
    log.delete("state = 'DEAD'")
    delta_log.tables(url)["events"].optimize.compact()
    fold(url)
    same(url)
    assert [finding for finding in check(url, skip=("losses",)) if finding.wrong] == []


@in_a_folder
def test_columns_of_an_upgrade_are_added_and_stay_after_a_downgrade(stored, url, monkeypatch):
    columns = LAYOUTS["messages"].schema
    with monkeypatch.context() as older:
        older.setitem(delta_log.SCHEMAS, "messages", pa.schema([field for field in columns if field.name != "worker"]))
        delta_log.switch_on(url)
        assert "worker" not in {field.name for field in delta_log.tables(url)["messages"].schema().fields}
    fold(url)
    same(url)
    stored.add({"celery": LIVES[1200:]})
    with monkeypatch.context() as older:
        older.setitem(delta_log.SCHEMAS, "messages", pa.schema([field for field in columns if field.name != "worker"]))
        fold(url)
    same(url)


def test_old_versions_of_a_log_go(tmp_path, monkeypatch):
    monkeypatch.setitem(delta_log.CONFIGURATION, "delta.logRetentionDuration", "interval 0 seconds")
    monkeypatch.setitem(delta_log.CONFIGURATION, "delta.checkpointInterval", "5")
    made = StoredEvents(tmp_path)
    delta_log.switch_on(tmp_path)
    for number in range(24):
        made.add({"celery": LIVES[number * 20 : number * 20 + 20]})
        fold(tmp_path)
    assert len(list((tmp_path / "messages/_delta_log").iterdir())) < 16
    same(tmp_path)


def test_a_copy_has_what_its_folder_has(tmp_path, url):
    root = tmp_path / "tables"
    made = StoredEvents(root)
    made.add({"celery": LIVES[:300]})
    fold(root)
    publish(root, url)
    assert delta_log.tables(url) == {}
    delta_log.switch_on(root)
    for start in range(300, 900, 300):
        publish(root, url)
        same(url)
        made.add({"celery": LIVES[start : start + 300]})
        fold(root)
        compact(root)
    publish(root, url)
    assert same(url)["events"].num_rows == 900
    with pytest.raises(TablesUnusable, match="has the copy of a folder"):
        delta_log.switch_on(url)
    delta_log.switch_off(root)
    publish(root, url)
    assert delta_log.tables(url) == {}
    assert not [name for name in opened(url).names() if "_delta_log" in name]


def test_the_job(job, url, redis_client, broker_url):
    assert job("delta", "--root", url) == "the first aggregation makes the logs"
    add_events(redis_client, "celery", LIVES)
    job("ingest", "--url", broker_url, "--root", url, "--once", "--batch", "500")
    job("aggregate", "--root", url)
    same(url)
    lines = job("delta", "--root", url).splitlines()
    assert lines[0].startswith(f"{opened(url)}/events: version ")
    assert f", {len(LIVES):,} rows in " in lines[0]
    log = delta_log.tables(url)["events"]
    (run, number) = next(iter(Manifest.read(url).folded.items()))
    assert log.transaction_version(run) == number, "the last micro-batch that is in the table"
    assert log.transaction_version("celery-redis-plus") == 1
    assert "no logs" in job("delta", "--root", url, "--off")
    assert [name for name in opened(url).names() if "delta" in name] == []
    with pytest.raises(TableNotFoundError):
        DeltaTable(f"{opened(url)}/events", storage_options=delta_log.storage_options(url))
    job("aggregate", "--root", url, "--rebuild", "--engine", "arrow")
    job("delta", "--root", url)
    same(url)


@in_a_folder
def test_without_the_package_a_job_ends_before_it_changes_anything(stored, url, monkeypatch):
    delta_log.switch_on(url)
    version = Manifest.read(url).version
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(SparkUnavailable, match=r"pip install 'deltalake"):
        fold(url)
    assert Manifest.read(url).version == version
    delta_log.switch_off(url)
    fold(url)
    assert Manifest.read(url).version == version + 1


def test_a_killed_service_keeps_them_exact(redis_client, broker_url, tmp_path):
    polars = pytest.importorskip("polars")
    root, count = tmp_path / "tables", 0
    delta_log.switch_on(root)
    words = f"spark run --url {broker_url} --root {root} --fresh 0.1 --batch 100 --reader r --trim".split()

    def read():
        return polars.scan_delta(str(root / "events")).select("n").collect().height if delta_log.tables(root) else 0

    for number in range(3):
        count += add_events(redis_client, "celery", LIVES[number * 500 : number * 500 + 500])
        service = Job((sys.executable, "-P", "-m", "celery_redis_plus", *words), tmp_path / f"service{number}.log")
        try:
            before = read()
            # The first ones are killed in the middle.
            service.until(lambda enough=before + 1 if number < 2 else count: read() >= enough)
            assert service.process.poll() is None, service.said
            service.process.send_signal(signal.SIGKILL if number < 2 else signal.SIGTERM)
            service.process.wait(60)
            service.gone()
        finally:
            service.end()
        whole(root)
    events = polars.scan_delta(str(root / "events")).select("queue", "epoch", "n").collect()
    assert events.height == events.unique().height == count
    same(root)
    assert json.loads((root / "delta.json").read_text(encoding="utf-8"))["version"] == Manifest.read(root).version


def test_the_sample_of_the_page(tmp_path, monkeypatch, capsys):
    StoredEvents(tmp_path / "tables").add({"celery": LIVES})
    fold(tmp_path / "tables")
    delta_log.switch_on(tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in of_page(ROOT / "docs" / "delta.md") if block.language == "python")
    exec(block.code, {})
    assert capsys.readouterr().out == "600 1\n"


@in_a_folder
def test_a_check_tells_which_log_names_other_files(stored, url):
    delta_log.switch_on(url)
    assert [finding.wrong for finding in check(url) if finding.check == "logs"] == [0]
    delta_log.tables(url)["messages"].delete("state = 'DEAD'")
    opened(url).clear("workers/_delta_log")
    found = [(finding.subject, finding.wrong) for finding in check(url) if finding.check == "logs"]
    assert sorted(subject for subject, _ in found) == ["messages", "workers"]
    assert min(wrong for _, wrong in found) >= 1
    fold(url)
    assert [finding.wrong for finding in check(url) if finding.check == "logs"] == [0]


@in_a_folder
def test_a_release_without_logs_may_be_at_work_in_between(stored, url, monkeypatch):
    delta_log.switch_on(url)
    with monkeypatch.context() as older:
        older.setattr(delta_log, "is_on", lambda _storage: False)
        older.setattr(delta_log, "follow", lambda _storage, _manifest: None)
        fold(url)
    assert fold(url).events == 0
    whole(url)
    stored.add({"celery": LIVES[1200:]})
    fold(url)
    same(url)


@in_a_folder
def test_a_damaged_log_is_told_with_the_remedy(stored, url):
    delta_log.switch_on(url)
    opened(url).write("queues/_delta_log/00000000000000000001.json", b"{")
    with pytest.raises(TablesUnusable, match=r"queues/_delta_log: .*`spark delta --off`, then `spark delta`"):
        fold(url)
    delta_log.switch_off(url)
    delta_log.switch_on(url)
    same(url)


@in_a_folder
def test_only_files_of_the_tables_folder_are_named(stored, url):
    """Readers other than Spark do not follow a log out of its folder."""
    delta_log.switch_on(url)
    fold(url)
    manifest, store = Manifest.read(url), opened(url)
    assert not [file for files in manifest.events.values() for file in files if not file.startswith("events/")]
    with store.locked():
        assert delta_log.bring_home(Layers(store, manifest.following())) == 0
