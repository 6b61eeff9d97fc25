"""A loaded installation of kombu's own Redis transport is migrated, with kills in the middle, and back (issue O, Show 1)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.chaos.migration_app import GO, NOTES_DB, make_app, runs
from tests.support.waiting import wait_until

PRIORITIES = (0, 3, 6, 9)
#: Seconds by which a task may run after its time: workers start meanwhile.
LATE_S = 10.0


@dataclass(frozen=True)
class Size:
    unacked: int
    etas: int
    backlog: int
    rate: int
    #: Seconds until the etas of the first half are due, and of the way back.
    due_s: float
    back_s: float


SHORT = Size(unacked=40, etas=40, backlog=200, rate=100, due_s=25, back_s=20)
FULL = Size(unacked=1000, etas=1000, backlog=4000, rate=200, due_s=90, back_s=60)


class Traffic(threading.Thread):
    """Publishes tasks with priorities to kombu's lists, at a steady rate until it is stopped."""

    def __init__(self, app, rate, seed):
        super().__init__(daemon=True)
        self.app, self.pause_s, self.random = app, 1 / rate, random.Random(seed)
        self.sent = Counter()
        self.stopping = threading.Event()

    def send(self):
        priority = self.random.choice(PRIORITIES)
        self.app.send_task("migration.run", (f"p{priority}-{self.sent[priority]}",), priority=priority)
        self.sent[priority] += 1

    def run(self):
        due = time.monotonic()
        while not self.stopping.wait(max(0.0, due - time.monotonic())):
            self.send()
            due += self.pause_s

    def finish(self):
        self.stopping.set()
        self.join()

    def names(self):
        return {f"p{priority}-{number}" for priority, count in self.sent.items() for number in range(count)}


class Migrator:
    """`celery-redis-plus migrate --follow` in a process of its own."""

    def __init__(self, url, log):
        self.command = [sys.executable, "-m", "celery_redis_plus", "migrate", "--follow", "--broker", url]
        self.log = log

    def __enter__(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def __exit__(self, kind, error, trace):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def place(own_server, start_worker, tmp_path):
    """The server, its workers of both kinds, and what the tasks note."""
    return Place(own_server, start_worker, tmp_path)


class Place:
    def __init__(self, server, start_worker, folder):
        self.server, self._start, self.folder = server, start_worker, folder
        self.old_url, self.new_url = server.url(scheme="redis"), server.url()
        self.broker, self.notes = server.client(), server.client(NOTES_DB)

    def worker(self, url, name, prefetch=4, **options):
        return self._start("tests.chaos.migration_app", broker=url, name=name, env={"CRP_PREFETCH": str(prefetch)}, **options)

    def migrator(self):
        return Migrator(f"{self.new_url}?priority_order=low-first", self.folder / "migrate.log")

    def migrate(self, *options):
        command = [sys.executable, "-m", "celery_redis_plus", "migrate", "--broker", f"{self.new_url}?priority_order=low-first"]
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)

    def ran(self):
        return {entry["name"] for entry in runs(self.notes)}


def send_later(app, prefix, count, due_s):
    """Send tasks that are due one after the other, the first in `due_s` seconds; return their times."""
    first = time.time() + due_s
    times = {f"{prefix}-{number}": first + number * 10 / count for number in range(count)}
    for name, at in times.items():
        app.send_task("migration.run", (name,), countdown=at - time.time())
    return times


def assert_in_time(entries, times):
    ran = {entry["name"]: entry["time"] for entry in entries if entry["name"] in times}
    late = {name: ran[name] - at for name, at in times.items()}
    assert min(late.values()) > -0.01
    assert max(late.values()) < LATE_S
    return max(late.values())


def test_a_loaded_installation_is_migrated_through_kills_and_back(place, full, figures):
    size = FULL if full else SHORT
    old_app, new_app = make_app(place.old_url), make_app(place.new_url)
    old = place.worker(place.old_url, "old", prefetch=size.unacked // 2, concurrency=2)

    # The old worker holds tasks for their time, runs two, and has prefetched as many as it may.
    times = send_later(old_app, "eta", size.etas, size.due_s)
    wait_until(lambda: place.broker.hlen("unacked") == size.etas, 60)
    held = [f"held-{number}" for number in range(size.unacked)]
    for number, name in enumerate(held):
        old_app.send_task("migration.block" if number < 2 else "migration.run", (name,))
    wait_until(lambda: place.broker.hlen("unacked") >= size.etas + size.unacked - 2, 60)
    traffic = Traffic(old_app, size.rate, seed=7)
    for _ in range(size.backlog):
        traffic.send()
    traffic.start()

    # Migrate under traffic; the command is killed twice.
    new = place.worker(place.new_url, "new", pool="solo", concurrency=1)
    began, kills = time.monotonic(), 0
    for _ in range(2):
        with place.migrator() as migrator:
            seen = len(place.ran())
            wait_until(lambda at=seen: len(place.ran()) > at + size.backlog // 4, 60)
            kills += migrator.process.poll() is None
    with place.migrator() as migrator:
        old.ask_to_stop()
        place.notes.set(GO, 1)
        assert old.wait(60) == 0
        traffic.finish()
        expected = traffic.names() | set(held) | times.keys()
        wait_until(lambda: expected <= place.ran(), 180, lambda: sorted(expected - place.ran())[:20])
        assert migrator.stop() == 0
    took_s = time.monotonic() - began
    entries = runs(place.notes)
    repeated = {name for name, count in Counter(entry["name"] for entry in entries).items() if count > 1}
    assert repeated <= set(held) | times.keys()
    for priority in PRIORITIES:
        numbers = order_at(entries, "new", f"p{priority}-")
        assert numbers == sorted(numbers)
        assert len(numbers) > size.backlog / 8
    late_s = assert_in_time(entries, times)
    assert not place.broker.exists("unacked", "unacked_index")
    assert kills == 2
    assert place.migrate("--status").returncode == 0

    late_back_s = go_back(place, new_app, new, size)
    figures(
        f"migration: {sum(traffic.sent.values())} tasks of 4 priorities at {size.rate}/s, {size.unacked} unacked, "
        f"{size.etas} etas, {kills} kills: 0 lost, {len(repeated)} repeated (of those unacked), {took_s:.0f} s, "
        f"{sum(entry['given_back'] for entry in entries)} given back by the old worker, etas up to {late_s:.2f} s late; "
        f"back: {size.etas} etas up to {late_back_s:.2f} s late; load {os.getloadavg()[0]:.1f}"
    )


def go_back(place, new_app, new, size):
    """Give everything back to kombu's transport, and return how late the last delayed task was."""
    times = send_later(new_app, "back", size.etas, size.back_s)
    new.stop()
    for number in range(100):
        new_app.send_task("migration.run", (f"waits-{number}",))
    ended = place.migrate("--reverse")
    assert ended.returncode == 0, ended.stderr
    again = place.worker(place.old_url, "again", concurrency=2)
    expected = {*times, *(f"waits-{number}" for number in range(100))}
    wait_until(lambda: expected <= place.ran(), size.back_s + 60, lambda: sorted(expected - place.ran())[:20])
    entries = [entry for entry in runs(place.notes) if entry["name"] in expected]
    assert len(entries) == len(expected)
    assert {entry["worker"] for entry in entries} == {"again"}
    again.stop()
    return assert_in_time(entries, times)


def order_at(entries, worker, prefix):
    """Return the numbers of the tasks that a worker ran, without those that the old worker had before."""
    return [
        int(entry["name"].removeprefix(prefix))
        for entry in entries
        if entry["worker"] == worker and entry["name"].startswith(prefix) and not entry["given_back"]
    ]
