"""Two `spark run` at once on one place, and kills of everything they need: the tables are as the model has them.

In an object store, and in a folder with and without Spark.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from redis.exceptions import RedisError

from celery_redis_plus.errors import ObjectStoreFailed, TablesUnusable
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.snapshot import Snapshot
from tests.spark.conftest import s3
from tests.spark.model import aggregate_in_python
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.live_events import unrepeating_client
from tests.support.servers import new_server
from tests.support.spark_jobs import DRIVER, JVM, WORKER
from tests.support.waiting import wait_until

__all__ = ["s3"]

QUEUES = ("celery", "mail")
SERVICE, INGEST, SERVER, STORE = "service", "ingest", "server", "store"
#: Place of the tables -> what is killed there, and how often in the full form. With Spark, `INGEST` is its driver.
KILLS = {
    "folder": {SERVICE: 20, INGEST: 20, SERVER: 20},
    "s3": {SERVICE: 20, INGEST: 20, SERVER: 20, STORE: 20},
    "folder by Spark": {SERVICE: 10, INGEST: 20, JVM: 20, WORKER: 20},
}
#: Seconds after which a process that was killed in an object store is replaced, and some for a busy machine.
REPLACED_S = 240


class Feed:
    """Writes lives of messages until it is stopped, each event once, however often the server is away."""

    def __init__(self, server, made, pause_s):
        self.server, self.made, self.pause_s = server, made, pause_s
        self.written = dict.fromkeys(QUEUES, 0)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def finish(self):
        self.stop.set()
        self.thread.join()
        return {queue: self.made[:count] for queue, count in self.written.items()}

    def _run(self):
        while not self.stop.wait(self.pause_s):
            for queue in QUEUES:
                with suppress(RedisError, OSError), unrepeating_client(self.server) as client:
                    there = self._there(client, queue)
                    add_events(client, queue, self.made[there : there + 40])
                    self.written[queue] = min(there + 40, len(self.made))
        for queue in QUEUES:
            with unrepeating_client(self.server) as client:
                self.written[queue] = self._there(client, queue)

    @staticmethod
    def _there(client, queue):
        key = Keys().queue(queue).events
        return int(client.xinfo_stream(key)["last-generated-id"].partition(b"-")[2]) if client.exists(key) else 0


class Pair:
    """Two services, each of which is started again when it has ended, as a service manager does."""

    def __init__(self, start_job, words):
        self._start = lambda: start_job(*words)
        self.jobs = [self._start(), self._start()]
        self.starts = 2

    def tend(self):
        for place, job in enumerate(self.jobs):
            if job.process.poll() is not None:
                assert job.process.returncode in {1, 3, -signal.SIGKILL}, job.said[-2000:]
                self.jobs[place] = self._start()
                self.starts += 1

    def running(self, what):
        """Return the processes of one kind of the service that works; none where there is no such service yet."""
        for job in self.jobs:
            others = [] if job.process.poll() is not None else [pid for pid in job.pids() if pid != job.process.pid]
            if others:
                found = {kind: job.running(kind) for kind in (DRIVER, JVM, WORKER)}
                found[INGEST] = [pid for pid in others if pid not in found[JVM] + found[WORKER]]
                return found[DRIVER if what == SERVICE else what]
        return []

    def events(self, root):
        """Return how many events the tables have, after a look at the services."""
        self.tend()
        with suppress(TablesUnusable):
            return sum(folded(root)[1].values())
        return -1

    def said(self):
        return "\n".join(job.said[-2000:] for job in self.jobs)

    def strike(self, what):
        """Kill them."""
        for pid in self.running(what):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def restart(stop, start, pause_s):
    stop()
    time.sleep(pause_s)
    start()


def folded(root):
    """Return the snapshot, and how many events of each queue its tables have; they are the first ones of each."""
    snapshot = Snapshot(root)
    files = [file for of_day in snapshot.manifest.events.values() for file in of_day]
    rows = snapshot.storage.dataset(files).to_table(columns=["queue", "epoch", "n"]).to_pylist()
    numbers = {queue: sorted(row["n"] for row in rows if row["queue"] == queue) for queue in QUEUES}
    for queue, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"the events of {queue} have a gap, or one twice"
    assert {row["epoch"] for row in rows} <= {START_MS}
    return snapshot, {queue: len(found) for queue, found in numbers.items()}


def assert_as_the_model(root, made):
    """Compare the tables as they are; return how many events they have."""
    snapshot, counts = folded(root)
    model = aggregate_in_python({queue: made[:count] for queue, count in counts.items() if count})
    columns = ("queue", "id", "state", "attempts", "events", "wait_s", "run_s")
    found = [row for batch in snapshot.batches("messages", columns) for row in batch.to_pylist()]
    keys = [(row["queue"], row["id"]) for row in found]
    assert len(keys) == len(set(keys)), Counter(keys).most_common(3)
    assert set(keys) == model["messages"].keys()
    for row in found:
        wanted = model["messages"][row["queue"], row["id"]]
        for name in columns[2:]:
            exact = wanted[name]
            assert row[name] == (pytest.approx(exact, abs=1e-9) if isinstance(exact, float) else exact), (row, name)
    counted = Counter()
    for batch in snapshot.batches("queues", ("queue", "published", "delivered", "backlog_change")):
        for row in batch.to_pylist():
            counted += Counter({name: row[name] for name in ("published", "delivered")})
    assert counted == Counter({name: sum(row[name] for row in model["queues"].values()) for name in ("published", "delivered")})
    return sum(counts.values())


@pytest.mark.parametrize("place", KILLS)
def test_tables_are_as_the_model_has_them_after_each_kill(request, start_job, full, tmp_path, figures, place):
    store = request.getfixturevalue("s3") if place == "s3" else None
    by_spark = JVM in KILLS[place]
    root = store.url if store else str(tmp_path / "tables")
    kills = [what for what, times in KILLS[place].items() for _ in range(times if full else 1 if by_spark else 5)]
    seed = random.randrange(10**6)
    source = random.Random(seed)
    source.shuffle(kills)
    made, done, compared = lives(40_000), Counter(), 0
    with new_server({"appendonly": "yes", "appendfsync": "always"}) as server:
        feed = Feed(server, made, 1.5 if full else 0.3)
        engine = ("--engine", "spark", "--master", "local[2,4]") if by_spark else ()
        pair = Pair(start_job, ("run", "--url", server.url(), "--root", root, "--fresh", "0.5", "--trim", *engine))

        try:
            before = 0
            for what in kills:
                if by_spark:
                    # Spark takes half a minute to its first micro-batch: a kill before that would be one of its start.
                    wait_until(lambda before=before: pair.events(root) > before, REPLACED_S, pair.said, interval_s=1.0)
                killed = INGEST if what in {SERVER, STORE} else what
                wait_until(lambda killed=killed: (pair.tend(), pair.running(killed))[1], REPLACED_S, pair.said, interval_s=0.1)
                time.sleep(source.uniform(0, 3))
                if what == SERVER:
                    restart(server.kill, server.restart, source.uniform(0, 1))
                elif what == STORE:
                    restart(store.stop, store.start, source.uniform(0, 3))
                else:
                    # It may have ended by itself meanwhile.
                    wait_until(lambda what=what: (pair.tend(), pair.running(what))[1], REPLACED_S, pair.said, interval_s=0.1)
                    pair.strike(what)
                done[what] += 1
                with suppress(TablesUnusable, ObjectStoreFailed):
                    after = assert_as_the_model(root, made)
                    compared += 1
                    assert after >= before
                    before = after
            published = feed.finish()
            wanted = sum(map(len, published.values()))
            wait_until(lambda: pair.events(root) == wanted, 2 * REPLACED_S, pair.said, interval_s=0.5)
        finally:
            feed.finish()
        for job in pair.jobs:
            job.process.send_signal(signal.SIGTERM)
        for job in pair.jobs:
            # One that was still starting does not know the signal yet.
            assert job.process.wait(60) in {0, 1, -signal.SIGTERM}, job.said[-2000:]
        assert fold(root).events == 0
        assert_as_the_model(root, made)
        assert "WRONG" not in start_job("check", "--engine", "arrow", "--root", root).wait()
    assert compared
    figures(
        f"{place}, seed {seed}: {sum(done.values())} kills {dict(done)}, {pair.starts} starts of two services: {wanted:,} events "
        f"written = rows = distinct; {compared} comparisons with the model, check passes"
    )
