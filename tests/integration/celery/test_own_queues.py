"""The queues that Celery declares for itself, however its settings say: we warn of none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from socket import gethostname

import pytest

from tests.integration.celery.app import CONFIG_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.waiting import wait_until

SETTINGS = {
    "defaults": {},
    "every setting of these queues": {
        "event_queue_ttl": 3,
        "event_queue_expires": 20,
        "event_queue_exclusive": True,
        "event_queue_prefix": "watched",
        "event_exchange": "shop.events",
        "control_queue_ttl": 9,
        "control_queue_expires": 20,
        "control_queue_exclusive": True,
        "control_exchange": "shop",
    },
    "queues that last": {
        "event_queue_exclusive": False,
        "event_queue_durable": True,
        "control_queue_exclusive": False,
        "control_queue_durable": True,
    },
    "results as messages": {"result_backend": "rpc://"},
}


def test_a_reply_queue_that_lasts_serves_each_call_anew(celery_app, celery_worker):
    """kombu names it by the address of an object, so that calls share it; it is deleted after each."""
    config = SETTINGS["queues that last"]
    worker = celery_worker(config=config)
    app = celery_app(**config)
    with app.connection_for_write() as connection:
        mailbox = app.control.mailbox(connection)
        for _ in range(3):
            assert mailbox.multi_call("ping", timeout=10, limit=1) == [{worker.name + "@" + gethostname(): {"ok": "pong"}}]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("setup", "settings"), list(zip(("alone", "alone", "configured", "configured"), SETTINGS, strict=True)), ids=list(SETTINGS)
)
def test_a_worker_and_a_monitor_warn_of_nothing_that_celery_declares(
    setup, settings, celery_app, celery_worker, broker_url, tmp_path
):
    config = SETTINGS[settings]
    worker = celery_worker(setup, config=config, options=("-E",), quiet=False)
    app = celery_app(setup, **config)
    env = {**os.environ, SETUP_VARIABLE: setup, URL_VARIABLE: broker_url, CONFIG_VARIABLE: repr(config), "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "events.log"
    with log.open("wb") as output:
        monitor = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.integration.celery.app", "events", "--dump"],
            env=env, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: app.control.ping(timeout=5, limit=1), 20, worker.tail)
        result = app.send_task("c.add", [1, 1])
        if "result_backend" in config:
            assert result.get(timeout=10) == 2
        wait_until(lambda: " heartbeat: " in log.read_text(), 60, log.read_text)
        assert app.control.inspect(timeout=5, limit=1).active()
    finally:
        monitor.terminate()
        monitor.wait(10)
    for text in (worker.log(), log.read_text()):
        assert [line for line in text.splitlines() if "has no effect" in line or "celery_redis_plus" in line] == []
        assert [line for line in text.splitlines() if "WARNING" in line and "queue" in line] == []
