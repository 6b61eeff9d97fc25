"""A worker that serves its own metrics (`metrics_port`), scraped as Prometheus does it."""

from __future__ import annotations

import logging
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from celery_redis_plus.errors import OptionError
from celery_redis_plus.integration.worker_metrics import WORKER_PREFIX, serve_metrics
from celery_redis_plus.options import Options
from celery_redis_plus.record_fields import PROCESS_COUNTERS, PROCESS_GAUGES
from tests.support.connection_kills import kill_connections
from tests.support.waiting import wait_until

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
    assert set(scrape(worker)) == {*(f"{name}_total" for name in PROCESS_COUNTERS), *PROCESS_GAUGES}
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


def test_a_port_that_is_taken_is_logged_and_the_worker_goes_on(caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve_metrics(Options(metrics_port=port)) is None
    assert caplog.record_tuples[0][1] == logging.ERROR
    assert f"metrics_port={port}: no metrics are served" in caplog.text
    assert "a free port" in caplog.text


def test_without_prometheus_client_the_extra_is_named(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert serve_metrics(Options(metrics_port=0)) is None
    assert "pip install 'prometheus-client>=0.20'" in caplog.text


def test_without_a_port_nothing_is_served():
    assert serve_metrics(Options()) is None


def test_a_port_out_of_range_is_refused():
    with pytest.raises(OptionError, match="metrics_port=70000 is not allowed"):
        Options(metrics_port=70_000)
