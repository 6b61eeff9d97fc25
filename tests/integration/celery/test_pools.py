"""Tasks under the pools, with early and late acks."""

import time

import pytest
from kombu import pools

from tests.integration.celery.app import make_app
from tests.integration.celery.fleet import START_S, Ship, fleet
from tests.integration.celery.notes import Notes
from tests.support.apps import JOURNAL_DB
from tests.support.waiting import wait_until

SHIPS = {
    f"{pool}-{acks}": (pool, acks == "late")
    for pool in ("prefork", "threads", "solo", "gevent", "eventlet")
    for acks in ("early", "late")
}


@pytest.fixture(scope="module")
def workers(server, tmp_path_factory):
    ships = {
        name: Ship(server.url(), pool=pool, config={"task_acks_late": late, "task_default_queue": name})
        for name, (pool, late) in SHIPS.items()
    }
    with fleet(server, tmp_path_factory.mktemp("pools"), ships) as started:
        yield started


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SHIPS)
def test_pool_runs_each_task_once_and_delayed_ones_in_time(name, server, workers):
    worker = workers[name]
    with make_app("alone", server.url(), {"task_default_queue": name}) as app:
        due = time.time() + 1
        for number in range(50):
            delayed = number % 10 == 0
            app.send_task("c.note", [f"{name}-delayed" if delayed else name, str(number)], countdown=1 if delayed else None)
    pools.reset()
    with server.client(JOURNAL_DB) as journal, server.client() as client:
        notes = Notes(journal)
        assert set(notes.wait_for(name, 45, START_S, worker.tail).values()) == {1}
        assert set(notes.wait_for(f"{name}-delayed", 5, 15, worker.tail).values()) == {1}
        assert time.time() >= due
        wait_until(lambda: not client.keys(f"message:{{{name}}}:*"), message=worker.tail)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in SHIPS if name.endswith("early")])
def test_a_task_that_is_acked_early_has_left_the_broker_while_it_still_runs(name, server, workers):
    worker = workers[name]
    with make_app("alone", server.url(), {"task_default_queue": name}) as app:
        app.send_task("c.wait", [f"{name}-long", "1"])
    pools.reset()
    with server.client(JOURNAL_DB) as journal, server.client() as client:
        notes = Notes(journal)
        wait_until(lambda: notes.started(f"{name}-long"), START_S, worker.tail)
        wait_until(lambda: not client.keys(f"message:{{{name}}}:*"), message=worker.tail)
        assert not notes.done(f"{name}-long")
        notes.go(f"{name}-long")
        notes.wait_for(f"{name}-long", 1, 15, worker.tail)
