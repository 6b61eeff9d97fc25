"""Flower, where it is installed: it is no dependency of ours, not even for tests (`pip install flower`)."""

import json
import os
import socket
import subprocess
import sys
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.integration.celery.app import CONFIG_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.waiting import wait_until

pytest.importorskip("flower", reason="Flower is not installed: pip install flower")


@pytest.fixture
def flower(broker_url, tmp_path):
    """Ask Flower's HTTP interface for something."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "FLOWER_UNAUTHENTICATED_API": "1", SETUP_VARIABLE: "configured", URL_VARIABLE: broker_url}
    env.pop(CONFIG_VARIABLE, None)
    command = [sys.executable, "-m", "celery", "-A", "tests.integration.celery.app", "flower", f"--port={port}"]
    with (tmp_path / "flower.log").open("wb") as log:
        process = subprocess.Popen([*command, "--address=127.0.0.1"], env=env, stdout=log, stderr=log)

    def ask(path):
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return json.load(answer)
        except URLError:
            return None

    try:
        wait_until(lambda: ask("/api/workers") is not None, 20, (tmp_path / "flower.log").read_text)
        yield ask
    finally:
        process.terminate()
        process.wait(10)


def test_flower_sees_workers_and_tasks(flower, celery_app, celery_worker):
    worker = celery_worker("configured", options=["--task-events"])
    app = celery_app()

    def succeeded():
        # Nothing tells when Flower listens to events, and they are not kept.
        app.send_task("c.add", [1, 2])
        return flower("/api/tasks?state=SUCCESS")

    def queues():
        # Flower waits a second for each answer.
        workers = (flower("/api/workers?refresh=1") or {}).values()
        return [queue["name"] for known in workers for queue in known.get("active_queues", ())]

    assert wait_until(queues, 30, worker.tail) == ["celery"]
    tasks = wait_until(succeeded, 30, worker.tail, interval_s=0.5)
    assert {task["name"] for task in tasks.values()} == {"c.add"}
