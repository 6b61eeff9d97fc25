"""`spark run` under load and kills: how new its tables are, whether its memory stays, and what they have at the end. No Java."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow.compute as pc
from pyarrow import dataset

from celery_redis_plus.spark.manifest import files
from tests.support.live_events import LiveEvents, unrepeating_client
from tests.support.servers import new_server

PAGE = os.sysconf("SC_PAGE_SIZE")
#: What Show 4 of issue 39 asks for.
FRESH_S, FRESHEST_P99_S, GROWTH = 30, 45.0, 1.05
QUEUES = {"celery": "", "mail": "", "media": ""}


def resident(pid):
    """Return the resident memory of a process, bytes; 0 where it is gone."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    return 0


class Samples:
    """Once a second: how old the tables are, and what the service and its ingest weigh."""

    def __init__(self, root):
        self.status = root / "status.json"
        #: (seconds since the begin, seconds that the tables are old, bytes of the service, bytes of its ingest)
        self.rows = []
        self.began = time.monotonic()

    def take(self, job):
        found = self._age_s()
        if found is not None:
            children = [pid for pid in job.pids() if pid != job.process.pid]
            weights = resident(job.process.pid), sum(map(resident, children))
            self.rows.append((time.monotonic() - self.began, found, *weights))

    def _age_s(self):
        try:
            told = json.loads(self.status.read_text(encoding="utf-8"))["freshness_s"]
            return None if told is None else told + time.time() - self.status.stat().st_mtime
        except FileNotFoundError:
            return None

    def ages(self):
        return sorted(row[1] for row in self.rows)

    def memory(self, first_s, last_s):
        """Return the mean weights between two times."""
        rows = [row for row in self.rows if first_s <= row[0] < last_s]
        return [sum(row[place] for row in rows) / max(1, len(rows)) for place in (2, 3)]


def test_a_service_is_fresh_flat_and_exact_under_kills(start_job, full, tmp_path, figures):
    seconds, rate = (1200, 500) if full else (90, 200)
    root = tmp_path / "tables"
    # Kills of the service itself come early: the second quarter's memory and the last one's are of one process then.
    kills = {seconds * share: what for share, what in ((0.08, "service"), (0.2, "ingest"), (0.6, "server"))}
    with new_server({"appendonly": "yes", "appendfsync": "always"}) as server:
        live = LiveEvents(partial(unrepeating_client, server), QUEUES, rate=rate, seed=random.randrange(10**6))
        live.start()
        words = ("run", "--url", server.url(), "--root", str(root), "--fresh", str(FRESH_S), "--trim")
        try:
            job = start_job(*words)
            samples = Samples(root)
            while (passed := time.monotonic() - samples.began) < seconds:
                for due in [due for due in kills if due <= passed]:
                    what = kills.pop(due)
                    if what == "service":
                        job.process.kill()
                        job.process.wait()
                        job.gone()
                        job = start_job(*words)
                    elif what == "ingest":
                        for pid in job.pids():
                            if pid != job.process.pid:
                                os.kill(pid, signal.SIGKILL)
                    else:
                        server.kill()
                        server.restart()
                samples.take(job)
                time.sleep(1)
        finally:
            count = live.stop()
        job.process.send_signal(signal.SIGTERM)
        job.wait()
        start_job("ingest", "--url", server.url(), "--root", str(root), "--once").wait()
        start_job("aggregate", "--engine", "arrow", "--root", str(root)).wait()
        checked = start_job("check", "--engine", "arrow", "--root", str(root)).wait()

    Path(tmp_path / "samples.json").write_text(json.dumps(samples.rows), encoding="utf-8")
    ages, quarter = samples.ages(), seconds / 4
    second, last = samples.memory(quarter, 2 * quarter), samples.memory(3 * quarter, seconds)
    p50, p99 = ages[len(ages) // 2], ages[int(len(ages) * 0.99)]
    stored = dataset.dataset(files(root, "events")).to_table(columns=["queue", "epoch", "n", "event"])
    distinct = stored.group_by(["queue", "epoch", "n"]).aggregate([]).num_rows
    figures(
        f"{live.messages:,} messages at {rate} a second, {count:,} events written, {stored.num_rows:,} rows, {distinct:,} "
        "distinct; "
        f"age of the tables {p50:.0f} s in the median, {p99:.0f} s p99, {ages[-1]:.0f} s at most; "
        f"service {second[0] / 1e6:.0f} MB in the second quarter, {last[0] / 1e6:.0f} MB in the last, "
        f"ingest {second[1] / 1e6:.0f} and {last[1] / 1e6:.0f} MB"
    )
    assert stored.num_rows == distinct == count
    found = {
        queue: Counter(stored.filter(pc.equal(stored.column("queue"), queue)).column("event").to_pylist()) for queue in QUEUES
    }
    assert found == live.written
    assert "WRONG" not in checked
    if full:
        assert p99 <= FRESHEST_P99_S
        assert sum(last) <= GROWTH * sum(second)
