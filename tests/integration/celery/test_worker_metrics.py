"""A worker that serves its own metrics (`metrics_port`), scraped as Prometheus does it."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.connection_kills import kill_connections
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

WORKER_PREFIX = "celery_redis_plus_worker_"
#: The page of metrics names all that a worker serves.
DOCUMENTED = set(re.findall(rf"`{WORKER_PREFIX}(\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
#: Port 0 is any free one, which the log names.
SERVING = {"broker_transport_options": {"metrics_port": 0}, "task_acks_late": True}


def scrape(worker):
    """Return the figures by their names, without the prefix."""
    address = re.search(r"metrics on (http://\S+)", worker.log())[1]
    request = Request(address, headers={"Accept": "application/openmetrics-text"})
    with urlopen(request, timeout=20) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return {sample.name.removeprefix(WORKER_PREFIX): sample.value for family in families for sample in family.samples}


def test_a_worker_counts_sweeps_redeliveries_and_reconnects(celery_worker, celery_app, notes, server):
    worker = celery_worker(config=SERVING)
    app = celery_app()
    assert set(scrape(worker)) == DOCUMENTED
    assert scrape(worker)["redeliveries_total"] == 0

    app.send_task("c.not_now", ["task", "1"])
    wait_until(lambda: scrape(worker)["redeliveries_total"] >= 1, 30, worker.tail, interval_s=0.1)
    wait_until(lambda: scrape(worker)["sweeps_total"] >= 1, 30, worker.tail, interval_s=0.1)
    notes.go("task")
    with server.client() as client:
        kill_connections(client)
    wait_until(lambda: scrape(worker)["reconnects_total"] >= 1, 30, worker.tail, interval_s=0.1)
    assert worker.log().count("metrics on ") == 1


def test_a_worker_counts_what_it_recovers_from_a_killed_one(celery_worker, celery_app, notes):
    config = {**SERVING, "broker_transport_options": {"metrics_port": 0, "connection_lost_grace": 0.5}}
    killed = celery_worker(config=config)
    celery_app().send_task("c.die", ["task", "1"])
    wait_until(lambda: not killed.running, 30, killed.tail)
    notes.go("task")
    worker = celery_worker(config=config)
    notes.wait_for("task", 1, message=worker.tail)
    assert scrape(worker)["recoveries_total"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_processes_of_a_pool_leave_the_port_to_the_worker(celery_worker, celery_app, notes):
    worker = celery_worker(config={**SERVING, "worker_max_tasks_per_child": 1}, pool="prefork", concurrency=1)
    app = celery_app()

    def listening(pid):
        mine = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                # Closed since.
                mine.add(str(descriptor.readlink()))
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"} & mine

    # The second child is forked after the worker has begun to listen.
    app.send_task("c.note", ["first", "1"])
    app.send_task("c.wait", ["second", "2"])
    wait_until(lambda: notes.started("second"), 30, worker.tail)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    assert listening(worker.pid)
    assert children
    assert not any(map(listening, children))
    assert scrape(worker)["unacked_messages"] >= 1
