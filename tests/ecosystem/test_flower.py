"""Flower, as a user starts it: its workers, tasks, queue lengths and its page "Broker"."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.celery.app import CONFIG_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.waiting import wait_until

pytest.importorskip("flower", reason="Flower is not installed: tox -e ecosystem")


@pytest.fixture
def flower(start_program):
    """Start Flower for an app: `flower("configured", url)`; returns what asks its API."""

    def start(setup, url, config=None):
        env = {
            "FLOWER_UNAUTHENTICATED_API": "1",
            SETUP_VARIABLE: setup,
            URL_VARIABLE: url,
            CONFIG_VARIABLE: repr(config or {}),
        }
        app = "tests.integration.celery.app"
        options = ("--port={port}", "--address=127.0.0.1")
        program = start_program("-m", "celery", "-A", app, "flower", *options, env=env)
        program.wait_for("/api/workers")
        return program

    return start


def test_flower_sees_workers_and_tasks(flower, broker_url, celery_app, celery_worker):
    program = flower("configured", broker_url)
    worker = celery_worker("configured", options=["--task-events"])
    app = celery_app()

    def ask(path):
        return json.loads(program.ask(path) or "{}")

    def succeeded():
        # Nothing tells when Flower listens to events, and they are not kept.
        app.send_task("c.add", [1, 2])
        return ask("/api/tasks?state=SUCCESS")

    def queues():
        # Flower waits a second for each answer.
        return [queue["name"] for known in ask("/api/workers?refresh=1").values() for queue in known.get("active_queues", ())]

    assert wait_until(queues, 30, worker.tail) == ["celery"]
    tasks = wait_until(succeeded, 30, worker.tail, interval_s=0.5)
    assert {task["name"] for task in tasks.values()} == {"c.add"}


@pytest.mark.parametrize(("setup", "scheme"), [("alone", "redisplus"), ("configured", "redis"), ("configured", "redisplus")])
def test_flower_shows_ready_delayed_and_unacked_messages(flower, celery_app, broker_url, setup, scheme):
    url = broker_url.replace("redisplus", scheme, 1)
    config = {"broker_transport_options": {"global_keyprefix": "shop:"}}
    app = celery_app(setup, url, **config)
    for _ in range(3):
        app.send_task("c.add", [1, 2])
    app.send_task("c.add", [1, 2], countdown=3600)
    with app.connection() as connection:
        assert connection.default_channel.basic_get("celery")
        program = flower(setup, url, config)

        lengths = json.loads(program.ask("/api/queues/length"))
        page = re.sub(r"\s+", " ", program.ask("/broker"))

    assert lengths == {
        "active_queues": [
            {"name": "celery", "messages": 4, "messages_ready": 2, "messages_unacknowledged": 1, "consumers": 0}
        ]
    }  # fmt: skip
    row = re.search(r'<tr id="celery">(.*?)</tr>', page)[1]
    assert re.findall(r"<td[^>]*>\s*(\w+)\s*</td>", row)[:4] == ["celery", "4", "1", "2"]
