"""The maintenance thread: it starts, ends, starts again where it died, and goes on where the server is away."""

from __future__ import annotations

import logging

import pytest

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.process_services import service_of
from celery_redis_plus.maintenance.service import IDLE_END_S
from celery_redis_plus.maintenance.shared_state import SharedState
from celery_redis_plus.options import Options
from tests.support.waiting import wait_until

LOGGER = "celery_redis_plus.maintenance"


class NoServer(Connector):
    """Opens no connection; counts the tries."""

    def __init__(self, options):
        super().__init__(Address.from_url("redisplus://localhost"), options)
        self.tries = 0

    def open(self, purpose, *, timeout):
        self.tries += 1
        raise ServerUnreachable("nobody listens")


@pytest.fixture
def connector():
    return NoServer(Options())


@pytest.fixture
def service(clock, connector):
    service = service_of(SharedState(connector, Keys(), connector.options))
    yield service
    service.close()


def test_the_thread_runs_from_start_to_stop(service, connector):
    assert not service.running
    service.start()
    wait_until(lambda: connector.tries)
    assert service.running
    service.stop()
    assert not service.running


def test_a_service_that_is_closed_does_not_start_again(service):
    service.start()
    service.close()
    service.start()
    assert not service.running


def test_a_service_that_runs_is_not_started_twice(service):
    service.start()
    thread = service._thread  # noqa: SLF001
    service.start()
    assert service._thread is thread  # noqa: SLF001


def test_a_stopped_service_starts_again(service, connector):
    service.start()
    service.stop()
    tries = connector.tries
    service.start()
    wait_until(lambda: connector.tries > tries)
    assert service.running


def test_a_service_that_was_never_started_stops(service):
    service.stop()
    assert not service.running


def test_a_stop_does_not_wait_for_the_next_try(service, connector, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.maintenance.service.FIRST_BACKOFF_S", 3600.0)
    monkeypatch.setattr("celery_redis_plus.maintenance.service.LONGEST_BACKOFF_S", 3600.0)
    service.start()
    thread = service._thread  # noqa: SLF001
    wait_until(lambda: connector.tries)
    service.stop()
    assert not thread.is_alive()


def test_an_unreachable_server_is_tried_again_and_logged_once(service, connector, caplog):
    service.consumed.add("q", "session", None)
    with caplog.at_level(logging.INFO, LOGGER):
        service.start()
        wait_until(lambda: connector.tries > 3)
    assert [record.getMessage() for record in caplog.records] == [
        "heartbeats and timers: the broker is unreachable (nobody listens); trying again"
    ]


def test_a_server_that_goes_away_when_nothing_is_consumed_is_not_logged(service, connector, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        service.start()
        wait_until(lambda: connector.tries > 3)
    assert not caplog.records


def test_a_defect_of_a_task_is_logged_counted_and_does_not_end_the_thread(service, connector, caplog, monkeypatch):
    failing = iter([RuntimeError("a defect")])

    def run():
        for error in failing:
            raise error

    monkeypatch.setattr(service.dropped.__class__, "next_run_at", 0.0)
    monkeypatch.setattr(service.dropped, "run", run)
    service.start()
    wait_until(lambda: connector.tries)
    assert service.running
    assert "please report it" in caplog.text
    assert "a defect" in caplog.text
    figures = service.figures()
    assert (figures["failed_tasks"], figures["failing_tasks"]) == (1, 1)


def test_without_consumers_the_thread_ends_after_a_while(service, connector, clock):
    service.start()
    wait_until(lambda: connector.tries > 1)
    assert service.running
    clock.advance(IDLE_END_S + 1)
    wait_until(lambda: not service.running)


def test_with_consumers_the_thread_goes_on(service, connector, clock):
    service.consumed.add("q", "session", None)
    service.start()
    wait_until(lambda: connector.tries > 1)
    clock.advance(IDLE_END_S + 1)
    tries = connector.tries
    wait_until(lambda: connector.tries > tries + 1)
    assert service.running


def test_a_thread_that_has_ended_for_want_of_consumers_is_no_death(service, connector, clock):
    service.start()
    wait_until(lambda: connector.tries > 1)
    clock.advance(IDLE_END_S + 1)
    wait_until(lambda: not service.running)
    service.check_thread()
    assert service.thread_restarts == 0


def test_a_service_that_was_stopped_is_not_started_by_a_check(service):
    service.start()
    service.stop()
    service.check_thread()
    assert not service.running
    assert service.thread_restarts == 0
