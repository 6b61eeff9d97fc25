"""A process that publishes, turns into a daemon, which closes all its descriptors, and then runs a worker."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.integration.celery.app import CONFIG_VARIABLE, JOURNAL_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.apps import JOURNAL_DB
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

PROGRAM = """
import os, pathlib, sys
from celery.platforms import DaemonContext
from tests.integration.celery.app import app

folder = pathlib.Path(sys.argv[1])
app.send_task("c.note", ["before", "1"])
# So many that their descriptors' numbers will be those of the pool's pipes.
kept = [app.connection_for_write() for _ in range(8)]
for connection in kept:
    connection.default_channel
DaemonContext(workdir=os.getcwd()).open()
log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
os.dup2(log, 1), os.dup2(log, 2)
(folder / "pid").write_text(str(os.getpid()))
app.set_default()
app.worker_main(["worker", "-c", "2", "-l", "info", "--without-mingle", "--without-gossip", "--max-tasks-per-child", "3"])
"""


@pytest.fixture
def daemon(server, broker_url, tmp_path, notes):
    env = {
        **os.environ,
        "C_FORCE_ROOT": "1",
        "PYTHONPATH": str(ROOT),
        SETUP_VARIABLE: "configured",
        URL_VARIABLE: broker_url,
        CONFIG_VARIABLE: "{}",
        JOURNAL_VARIABLE: server.url(JOURNAL_DB, "redis"),
    }
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], env=env, cwd=ROOT, check=True, timeout=100)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 15))
    yield pid
    with suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)


def test_a_prefork_worker_runs_in_a_process_that_published_before_it_became_a_daemon(daemon, celery_app, notes, tmp_path):
    def log():
        return (tmp_path / "log").read_text()

    notes.wait_for("before", 1, 30, log)
    app = celery_app("configured")
    for number in range(12):
        app.send_task("c.note", ["daemon", str(number)])
    assert set(notes.wait_for("daemon", 12, 20, log).values()) == {1}
    assert "Traceback" not in log()
    os.kill(daemon, signal.SIGTERM)

    def gone():
        with suppress(ProcessLookupError):
            os.kill(daemon, 0)
            return False
        return True

    wait_until(gone, 15, log)
