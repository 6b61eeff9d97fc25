"""A worker that takes what unconverted processes publish to kombu's lists (`take_from_kombu`)."""

from __future__ import annotations

import pytest

from tests.support.connection_kills import kill_connections
from tests.support.waiting import wait_until

pytestmark = pytest.mark.not_on("cluster", "cluster-tls", reason="kombu's own transport, whose lists these are, knows no cluster")

TAKING = {"broker_transport_options": {"take_from_kombu": True, "priority_order": "low-first"}}


@pytest.fixture
def old_app(celery_app, server):
    """A publisher of kombu's own Redis transport."""
    return celery_app("alone", server.url(scheme="redis"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_takes_what_an_unconverted_process_publishes(celery_worker, notes, old_app, server, pool):
    old_app.send_task("c.note", ["early", "1"])
    worker = celery_worker(config=TAKING, pool=pool)
    notes.wait_for("early", 1, message=worker.tail)
    old_app.send_task("c.note", ["later", "1"], priority=3)
    old_app.send_task("c.note", ["due", "1"], countdown=1)
    notes.wait_for("later", 1, message=worker.tail)
    notes.wait_for("due", 1, message=worker.tail)

    with server.client() as client:
        kill_connections(client)
    old_app.send_task("c.note", ["again", "1"])
    notes.wait_for("again", 1, message=worker.tail)
    assert "keeps them, unread" not in worker.log()

    assert worker.stop() == 0
    old_app.send_task("c.note", ["after", "1"])
    with server.client() as client:
        assert client.llen("celery") == 1


def test_what_stays_is_told_once(celery_worker, notes, old_app):
    old_app.send_task("c.note", ["first", "1"], priority=5)
    worker = celery_worker(config={"broker_transport_options": {"take_from_kombu": True}})
    wait_until(lambda: "nothing more is taken from kombu's lists: a message has priority 5" in worker.log(), 30, worker.tail)
    worker.stop()
