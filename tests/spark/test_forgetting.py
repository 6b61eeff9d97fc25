"""Messages that are forgotten are in no file, version or open state; a kill leaves all of it or nothing. No Java."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter

import pytest

pytest.importorskip("duckdb", reason="needs the extra `spark`")

from pyarrow import dataset, parquet

from celery_redis_plus.access_rules import ROLES
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.events import Event
from celery_redis_plus.keys import Keys
from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark import forgetting, jobs, leftovers
from celery_redis_plus.spark import lease as lease_module
from celery_redis_plus.spark.checks import check
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.forgetting import forget
from celery_redis_plus.spark.job_arguments import add_arguments
from celery_redis_plus.spark.layers import Layers
from celery_redis_plus.spark.losses import FORGOTTEN, noted
from celery_redis_plus.spark.manifest import Manifest, files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.views import query
from tests.support.event_streams import add_events, lives
from tests.support.stored_events import StoredEvents

LIVES = lives(600)
PAYLOAD = b"a name and an address"
#: Of two messages, one that is finished and one that is open.
FINISHED = next(event.id for event in LIVES if event.event == "acked" and event.reason is None)
OPEN = [event.id for event in LIVES if event.event == "published"][-1]
WHERE = f"id IN ('{FINISHED}', '{OPEN}')"


@pytest.fixture
def root(tmp_path):
    """Tables of several versions, some events in batches that no aggregation has taken."""
    made = StoredEvents(tmp_path / "tables")
    before_last = max(place for place, event in enumerate(LIVES) if event.id == OPEN and event.event == "published")
    for start in range(0, before_last, 400):
        made.add({"celery": LIVES[start : min(start + 400, before_last)]}, payload=PAYLOAD)
        fold(made.root)
    made.add({"celery": LIVES[before_last : before_last + 1]}, payload=PAYLOAD)
    return made.root


def everywhere(root):
    """Return how often each message is in any Parquet file there is, named or not; and the files."""
    found = Counter()
    for path in root.rglob("*.parquet"):
        if "id" in parquet.read_schema(path).names:
            found.update(parquet.read_table(path, columns=["id"], partitioning=None).column("id").to_pylist())
    return found


def receipts(root):
    found = [path.read_text(encoding="utf-8") for path in (root / "receipts").glob("*.json")]
    return [json.loads(text) for text in found if text]


def test_the_same_condition_finds_what_happened_later(root):
    """Later events of a message tell neither its task nor its queue's routing."""
    condition = f"id = '{OPEN}' AND task IS NOT NULL"
    assert forget(root, condition).unfinished == 1
    last = StoredEvents(root, "later")
    ends = {"claimed": {"worker": "w"}, "dead_lettered": {"reason": "rejected", "error": "KeyError: 'ada@example.org'"}}
    last.add({"celery": [Event(event=name, ts=LIVES[-1].ts, id=OPEN, **own) for name, own in ends.items()]})
    fold(root)
    assert everywhere(root)[OPEN]
    assert forget(root, f"{condition} AND TRUE").messages == 0
    assert forget(root, condition).messages == 1
    assert not everywhere(root)[OPEN]
    assert forget(root, condition).messages == 0
    assert [found for found in check(root) if found.wrong and found.check != "numbers"] == []


def test_it_is_in_no_file_version_or_open_state(root):
    before = everywhere(root)
    assert before[FINISHED] > 1
    rows = dataset.dataset(files(root, "events")).count_rows()
    done = forget(root, WHERE)
    after = everywhere(root)
    assert after[FINISHED] == after[OPEN] == 0
    assert (done.messages, done.unfinished, done.payloads, done.broker) == (2, 1, 2, None)
    assert {name for name in before if name not in {FINISHED, OPEN}} <= set(after), "the others are there"
    assert dataset.dataset(files(root, "events")).count_rows() == rows - done.events
    assert len(list((root / "versions").glob("*.json"))) == 1
    (receipt,) = receipts(root)
    assert (receipt["id"], receipt["state"], receipt["messages"], receipt["events"]) == (done.receipt, "done", 2, done.events)
    assert FINISHED not in json.dumps(receipt), "the condition itself may tell who it was about"
    assert [finding for finding in check(root) if finding.wrong] == []
    (loss,) = [loss for loss in noted(root, Manifest.read(root)) if loss.why == FORGOTTEN]
    assert loss.count == done.events
    fold(root, rebuild=True)
    assert everywhere(root)[FINISHED] == 0


def test_what_goes_on_is_as_before(root):
    forget(root, WHERE)
    StoredEvents(root, "other").add({"mail": LIVES[:100]})
    fold(root)
    compact(root)
    fold(root, kept_s=-60.0)
    assert everywhere(root)[FINISHED] == 0 or FINISHED in {event.id for event in LIVES[:100]}
    assert [finding for finding in check(root) if finding.wrong] == []
    assert receipts(root)[0]["state"] == "done"


def test_a_forgotten_message_is_in_no_backlog_for_ever(root):
    """What becomes of it later does not tell that it was ready."""

    def backlogs():
        minutes = "SELECT backlog FROM queues WHERE queue = 'celery' ORDER BY minute"
        return [row["backlog"] for row in query(root, minutes).to_pylist()]

    fold(root)
    *others, last = backlogs()
    forget(root, WHERE)
    assert backlogs() == [*others, last - 1]
    later = [Event(event=name, ts=LIVES[-1].ts + 60_000_000, id=OPEN) for name in ("claimed", "acked")]
    StoredEvents(root, "later").add({"celery": later})
    fold(root)
    assert backlogs() == [*others, last - 1, last - 1]
    fold(root, rebuild=True)
    assert backlogs()[-1] == last - 1


def test_a_dry_run_and_nothing_chosen_change_nothing(root):
    fold(root)
    before, version = everywhere(root), Manifest.read(root).version
    assert forget(root, WHERE, dry_run=True).messages == 2
    assert forget(root, "id = 'x'").messages == 0
    assert everywhere(root) == before
    assert Manifest.read(root).version == version
    assert receipts(root) == []
    with pytest.raises(InvalidArgument, match="customer"):
        forget(root, "customer = 7")


class KilledError(Exception):
    pass


@pytest.mark.parametrize("finished_by", ["forget", "fold", "compact"])
@pytest.mark.parametrize("at", ["begun", "written", "counts", "removed", "finished"])
def test_killed_in_the_middle_the_next_job_makes_it_whole(root, monkeypatch, at, finished_by):
    """Before the version counts nothing has happened; after it, the next job removes what is left."""

    def killed(*_arguments):
        raise KilledError

    fold(root)
    with monkeypatch.context() as patch:
        if at == "begun":
            patch.setattr(Layers, "without", killed)
        elif at == "written":
            patch.setattr(Manifest, "write", killed)
        elif at == "counts":
            real, calls = forgetting.remove_leftovers, []
            patch.setattr(forgetting, "remove_leftovers", lambda *given: killed() if calls else calls.append(real(*given)))
        elif at == "removed":
            patch.setattr(leftovers, "finish", killed)
        else:
            # In Azure's store an object is empty until it is whole.
            real_write = TablesFolder.write

            def empty(store, name, content):
                real_write(store, name, b"" if '"state": "done"' in content.decode() else content)
                assert b'"state": "done"' not in content or killed()

            patch.setattr(TablesFolder, "write", empty)
        with pytest.raises(KilledError):
            forget(root, WHERE)
    has_counted = at in {"counts", "removed", "finished"}
    assert [receipt["state"] for receipt in receipts(root)] == ["begun"]
    {"forget": lambda: forget(root, WHERE), "fold": lambda: fold(root), "compact": lambda: compact(root)}[finished_by]()
    assert (everywhere(root)[FINISHED] == 0) == (has_counted or finished_by == "forget")
    assert [receipt["state"] for receipt in receipts(root)] == ["done"] * (has_counted or finished_by == "forget")
    forget(root, WHERE)
    assert everywhere(root)[FINISHED] == 0
    assert [receipt["state"] for receipt in receipts(root)] == ["done"]
    assert [finding for finding in check(root) if finding.wrong] == []


def test_the_job_names_what_the_broker_still_has(root, redis_client, broker_url):
    add_events(redis_client, "celery", LIVES)
    keys = Keys("").queue("celery")
    redis_client.hset(keys.message + OPEN.encode(), "x", "y")
    count = sum(event.id in {FINISHED, OPEN} for event in LIVES)
    said = []

    def job(*words):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        said.clear()
        assert jobs.run(parser.parse_args([*words, "--root", str(root), "--where", WHERE]), said.append) == 0
        return "\n".join(said)

    assert "was not looked for: give --url" in job("forget", "--dry-run")
    told = job("forget", "--url", broker_url)
    assert re.match(r"2 messages, \d+ events, 2 payloads removed; \d+ files written anew", told)
    assert f"the broker still has {keys.events.decode()} ({count})" in told
    assert f"the broker still has {keys.message.decode()}{OPEN} (1)" in told
    assert "1 of them are not finished" in told
    (receipt,) = receipts(root)
    assert told.endswith(f"receipt {root}/receipts/{receipt['id']}.json")
    assert receipt["broker"] == {keys.events.decode(): count, f"{keys.message.decode()}{OPEN}": 1}


def test_a_user_who_may_see_events_alone_forgets_and_is_told_what_is_unknown(root, redis_client, broker_url, caplog):
    add_events(redis_client, "celery", LIVES)
    (role,) = [role for role in ROLES if role.name == "reader"]
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", *role.rule("").split())
    try:
        with events_at(broker_url.replace("//", "//reader:pw@")) as log:
            done = forget(root, WHERE, log=log)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")
    assert everywhere(root)[FINISHED] == 0
    assert list(done.broker) == [Keys("").queue("celery").events.decode()]
    assert "whether the broker still has the messages is unknown" in caplog.text


def test_it_is_removed_at_a_url(s3, monkeypatch):
    for name, seconds in (("BEAT_S", 0.1), ("SILENT_S", 1.0), ("POLL_S", 0.05)):
        monkeypatch.setattr(lease_module, name, seconds)
    import threading

    from celery_redis_plus.spark.arrow_ingest import ArrowIngest
    from celery_redis_plus.spark.storage import INGEST_LOCK
    from tests.support.servers import new_server

    store = opened(s3.url)
    with new_server() as server, server.client() as client:
        for events in (LIVES[:500], LIVES[500:]):
            add_events(client, "celery", events)
            with store.locked(INGEST_LOCK):
                ArrowIngest(store, {"url": server.url()}).run(threading.Event(), print, once=True)
            fold(store)
    forget(store, WHERE)
    for name in store.names():
        if name.endswith(".parquet") and "id" in store.metadata(name).schema.to_arrow_schema().names:
            assert FINISHED not in store.table(name).column("id").to_pylist(), name
    assert [finding for finding in check(store) if finding.wrong] == []
