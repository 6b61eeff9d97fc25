"""Finished messages go into files, each once, whatever happens to a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow")
from pyarrow import parquet

from celery_redis_plus.cli.main import main
from celery_redis_plus.event_log import archiver
from celery_redis_plus.event_log.archive_folders import described
from celery_redis_plus.event_log.archiver import move_finished
from celery_redis_plus.event_log.finished_messages import FINISHED, is_finished, row
from celery_redis_plus.event_log.readers import readers
from celery_redis_plus.events import Event
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(2000)


def expected(events):
    paths = {}
    for event in events:
        paths.setdefault(event.id, []).append(event)
    return {tag: path for tag, path in paths.items() if is_finished(path)}


def rows_in(folder):
    files = sorted((folder / "queue=celery").glob("finished-*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def test_each_finished_message_is_a_row_and_its_events_leave_the_stream(log, redis_client, tmp_path):
    count = add_events(redis_client, "celery", LIVES)
    (moved,) = move_finished(log, ["celery"], tmp_path).values()
    finished = expected(LIVES)
    assert (moved.finished, moved.events, moved.lost) == (len(finished), count, 0)
    rows = {found["id"]: found for found in rows_in(tmp_path)}
    assert rows.keys() == finished.keys()
    assert Counter(found["state"] for found in rows.values()) == Counter(row(path)["state"] for path in finished.values())
    tag, path = next((tag, path) for tag, path in finished.items() if len(path) > 4)
    found = rows[tag]
    assert list(found) == [column.name for column in FINISHED]
    assert found["deliveries"] == sum(event.event == "claimed" for event in path)
    assert found["finished_at"].timestamp() == pytest.approx(path[-1].ts / 1e6)
    assert found["task_id"] == path[0].task_id
    assert redis_client.xlen("events:{celery}") < 100
    (reader,) = readers(log, ["celery"])
    assert (reader.name, reader.behind) == ("archive", 0)


def test_a_message_that_ends_in_a_later_run_is_one_whole_row(log, redis_client, tmp_path, monkeypatch):
    monkeypatch.setattr(archiver, "EVENTS_A_FILE", 500)
    for cut in range(0, len(LIVES), 1500):
        add_events(redis_client, "celery", LIVES[cut : cut + 1500])
        move_finished(log, ["celery"], tmp_path)
    finished = expected(LIVES)
    rows = rows_in(tmp_path)
    assert len(rows) == len(finished)
    assert {found["id"]: found["deliveries"] for found in rows} == {
        tag: sum(event.event == "claimed" for event in path) for tag, path in finished.items()
    }
    assert len(list((tmp_path / "queue=celery").glob("open-*"))) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("dies_at", ["before the first file", "between the files", "before the server knows"])
def test_a_run_that_dies_is_made_good_by_the_next(dies_at, log, redis_client, tmp_path, monkeypatch):
    class KilledError(Exception):
        pass

    add_events(redis_client, "celery", LIVES[:3000])
    move_finished(log, ["celery"], tmp_path)
    add_events(redis_client, "celery", LIVES[3000:])
    replace, commit, replaced, commits = archiver._replace, archiver.commit, [], []

    def dying_replace(path, table):
        if len(replaced) == ["before the first file", "between the files"].index(dies_at):
            raise KilledError
        replaced.append(path)
        replace(path, table)

    def dying_commit(*args, **options):
        commits.append(args)
        if len(commits) == 2:
            raise KilledError
        return commit(*args, **options)

    with monkeypatch.context() as patched:
        if dies_at == "before the server knows":
            patched.setattr(archiver, "commit", dying_commit)
        else:
            patched.setattr(archiver, "_replace", dying_replace)
        with pytest.raises(KilledError):
            move_finished(log, ["celery"], tmp_path)
    move_finished(log, ["celery"], tmp_path)
    rows = rows_in(tmp_path)
    assert Counter(found["id"] for found in rows) == Counter(expected(LIVES).keys())


def test_a_dead_letter_is_a_row_at_once_with_its_exception_and_a_replayed_one_gets_another(log, redis_client, tmp_path):
    def begun(number):
        tag, start_us = f"{START_MS:011x}{number:08x}.1", START_MS * 1000
        return [Event(event="published", ts=start_us, id=tag, task="t"), Event(event="claimed", ts=start_us, id=tag, claim=1)]

    kept, replayed, gone = begun(1), begun(2), begun(3)

    def happens(path, kind, **values):
        return Event(event=kind, ts=path[-1].ts + 1000, id=path[0].id, **values)

    deaths = [happens(path, "dead_lettered", reason="rejected", error="KeyError: 'x'") for path in (kept, replayed, gone)]
    add_events(redis_client, "celery", [*kept, *replayed, *gone, *deaths])
    (moved,) = move_finished(log, ["celery"], tmp_path).values()
    assert moved.finished == 3
    assert {(found["state"], found["event"], found["error"]) for found in rows_in(tmp_path)} == {
        ("DEAD", "dead_lettered", "KeyError: 'x'")
    }
    later = [happens(deaths[1:], "replayed"), happens(deaths[1:], "claimed", claim=2, worker="w"), happens(deaths[1:], "acked")]
    add_events(redis_client, "celery", [*later, happens(deaths[2:], "dropped", reason="retention")])
    (moved,) = move_finished(log, ["celery"], tmp_path).values()
    assert moved.finished == 1
    states = {tag: [] for tag in (kept[0].id, replayed[0].id, gone[0].id)}
    for found in rows_in(tmp_path):
        states[found["id"]].append((found["state"], found["deliveries"]))
    assert list(states.values()) == [[("DEAD", 1)], [("DEAD", 1), ("COMPLETED", 2)], [("DEAD", 1)]]


def test_odd_names_stop_no_queue(log, redis_client, tmp_path):
    """Queues and tasks have names that are no UTF-8, or too long for a file system."""
    queues = ["celery", "x\udcff", "é" * 2000, "%2F", "..", "zoo"]
    odd = [replace(event, task="t\udcff") if event.task else event for event in LIVES[:50]]
    for queue in queues:
        add_events(redis_client, queue, odd)
    moved = move_finished(log, log.queues(), tmp_path, events=True)
    assert moved.keys() == set(queues)
    assert sorted(described(folder)[0] for folder in tmp_path.iterdir()) == sorted(queues)
    assert {found["task"] for found in rows_in(tmp_path)} == {"t\ufffd"}
    assert all(of.finished == moved["celery"].finished > 0 for of in moved.values())


def test_no_time_is_negative_where_the_clock_of_the_server_went_back():
    kinds = ("published", "claimed", "acked")
    found = row([Event(event=kind, ts=1000 * START_MS - place * 5_000_000, id=LIVES[0].id) for place, kind in enumerate(kinds)])
    assert (found["queued_ms"], found["worked_ms"]) == (0, 0)


def test_what_was_trimmed_before_it_was_read_is_counted(log, redis_client, tmp_path):
    add_events(redis_client, "celery", LIVES)
    redis_client.xtrim("events:{celery}", maxlen=redis_client.xlen("events:{celery}") - 300, approximate=False)
    (moved,) = move_finished(log, ["celery"], tmp_path).values()
    assert moved.lost == 300
    assert readers(log, ["celery"])[0].lost == 300


def test_the_command_moves_and_says_so(redis_client, broker_url, tmp_path, capsys):
    add_events(redis_client, "celery", LIVES)
    assert main(["events", "archive", "--url", broker_url, "--to", str(tmp_path)]) == 0
    assert f"celery: {len(expected(LIVES)):,} finished messages moved" in capsys.readouterr().out
