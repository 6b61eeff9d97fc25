"""One service over three shards on one server, with real workers and kills: its tables say what the streams say. No Java."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from celery import Celery
from kombu.exceptions import OperationalError
from pyarrow import dataset

from celery_redis_plus import configure_app
from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.manifest import files
from tests.integration.shards.conftest import SHARDS, named
from tests.spark.model import aggregate_in_python
from tests.support.events import events_of
from tests.support.servers import new_server
from tests.support.waiting import wait_until
from tests.support.workers import Worker

QUEUES = [named(shard, what) for shard in range(SHARDS) for what in ("orders.", "mail.")]
PATIENCE_S = 240
OPTIONS = f"shards={SHARDS}&event_log=true"


class Publisher:
    """Sends tasks to queues of all shards, until it is told to end."""

    def __init__(self, url, journal_url, pause_s):
        self.app = configure_app(Celery("publisher", broker=url))
        self.confirmed = {}
        self._journal_url, self._pause_s = journal_url, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self):
        self._stop.set()
        self._thread.join()
        self.app.close()

    def _run(self):
        number = 0
        while not self._stop.wait(self._pause_s):
            number += 1
            queue = QUEUES[number % len(QUEUES)]
            with suppress(OperationalError):
                sent = self.app.send_task(
                    "tests.spark.worker_app.note", (self._journal_url, str(number)), queue=queue, retry=False
                )
                self.confirmed[sent.id] = queue


class Pipeline:
    """The service and a worker, each of which a test kills and starts again."""

    def __init__(self, start_job, url, root, folder):
        self._start_job, self._url, self._root, self._folder = start_job, url, root, folder
        self.kills = dict.fromkeys(("ingest", "service", "worker", "server"), 0)
        self._start_worker()
        self._start_service()

    def _start_service(self):
        self.service = self._start_job("run", "--url", self._url, "--root", str(self._root), "--fresh", "2")

    def _start_worker(self):
        self.worker = Worker(
            "tests.spark.worker_app", self._folder, broker=self._url, pool="prefork", concurrency=2, queues=QUEUES
        )
        self.worker.__enter__()

    def strike(self, server):
        """Kill the next one in turn."""
        what = list(self.kills)[sum(self.kills.values()) % len(self.kills)]
        self.kills[what] += 1
        if what == "ingest":
            for pid in set(self.service.pids()) - {self.service.process.pid}:
                os.kill(pid, signal.SIGKILL)
        elif what == "service":
            self.service.process.kill()
            self.service.process.wait()
            self.service.gone()
            self._start_service()
        elif what == "worker":
            self.worker.kill()
            self._start_worker()
        else:
            server.kill()
            server.restart()

    def finish(self):
        """End both, and put what is left into the tables; return what the check said."""
        self.worker.stop()
        self.service.process.send_signal(signal.SIGTERM)
        self.service.wait()
        self._start_job("ingest", "--url", self._url, "--root", str(self._root), "--once").wait()
        self._start_job("aggregate", "--engine", "arrow", "--root", str(self._root)).wait()
        return self._start_job("check", "--engine", "arrow", "--root", str(self._root)).wait()


def wait_until_worked_off(url):
    with admin_of_url(url) as admin:

        def left():
            return [one.queue for one in admin.overview(*QUEUES) if one.ready or one.unacked or one.delayed]

        wait_until(lambda: not left(), PATIENCE_S, left)


def test_one_service_over_three_shards_has_every_event_once(start_job, full, tmp_path, figures):
    seconds = 300 if full else 60
    root = tmp_path / "tables"
    with new_server({"appendonly": "yes", "appendfsync": "always"}) as server, new_server() as journal:
        url = f"{server.url()}?{OPTIONS}"
        publisher = Publisher(url, journal.url(), 0.01)
        try:
            wait_until(lambda: len(publisher.confirmed) > 20, PATIENCE_S)
            pipeline = Pipeline(start_job, url, root, tmp_path)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                time.sleep(seconds / 10 + random.uniform(0, 2))
                pipeline.strike(server)
        finally:
            publisher.end()
        wait_until_worked_off(url)
        checked = pipeline.finish()
        with server.client() as client:
            prefixes = {queue: shard_prefixes("", SHARDS)[place // 2] for place, queue in enumerate(QUEUES)}
            streams = {queue: events_of(client, Keys(prefix), queue) for queue, prefix in prefixes.items()}

    rows = dataset.dataset(files(root, "events")).to_table(columns=["queue", "epoch", "n", "event", "id"])
    count = sum(map(len, streams.values()))
    assert rows.group_by(["queue", "epoch", "n"]).aggregate([]).num_rows == rows.num_rows == count
    stored = {queue: [] for queue in QUEUES}
    for row in rows.sort_by([("epoch", "ascending"), ("n", "ascending")]).to_pylist():
        stored[row["queue"]].append((row["event"], row["id"]))
    assert stored == {queue: [(event.event, event.id) for event in events] for queue, events in streams.items()}
    messages = dataset.dataset(files(root, "messages")).to_table(columns=["queue", "id", "state", "attempts", "task_id"])
    found = {(row["queue"], row["id"]): row for row in messages.to_pylist()}
    model = aggregate_in_python(streams)["messages"]
    assert {key: (row["state"], row["attempts"]) for key, row in found.items()} == {
        key: (row["state"], row["attempts"]) for key, row in model.items()
    }
    states = {row["task_id"]: row["state"] for row in found.values()}
    assert {states.get(task) for task in publisher.confirmed} == {"COMPLETED"}
    assert "WRONG" not in checked
    again = sum(row["attempts"] > 1 for row in found.values())
    figures(
        f"{len(publisher.confirmed):,} confirmed tasks in {len(QUEUES)} queues of {SHARDS} shards, kills {pipeline.kills}: "
        f"{count:,} events = rows = distinct, {len(found):,} messages as the model has them, {again} delivered more than once"
    )
