"""A maintenance task that raises fails alone: each that the service has is made to fail in turn, and the others run."""

from __future__ import annotations

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.process_services import service_of
from celery_redis_plus.maintenance.runner import TaskRunner
from celery_redis_plus.maintenance.shared_state import SharedState
from celery_redis_plus.options import Options
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


class CustomError(Exception):
    """An error that no code of ours names."""


class Watched:
    """A maintenance task that is always due, counts its runs that succeed, and raises `error` instead where there is one."""

    def __init__(self, task):
        self._task, self.error, self.runs = task, None, 0

    next_run_at = 0.0

    def run(self):
        if self.error is not None:
            raise self.error
        self._task.run()
        self.runs += 1


def watched_type(task):
    """Return a class of the task's name: failures are told by it."""
    return type(type(task).__name__, (Watched,), {})


def names_of_tasks():
    options = Options()
    service = service_of(SharedState(Connector(Address.from_url("redisplus://localhost"), options), Keys(), options))
    try:
        return [type(task).__name__ for task in service.runner.tasks]
    finally:
        service.close()


@pytest.fixture
def service(connect, monkeypatch):
    """The service of a process that consumes; its tasks are watched."""
    monkeypatch.setattr("celery_redis_plus.maintenance.runner.FIRST_REST_S", 0.1)
    inbox = Inbox(connect().channel(), "q")
    service = inbox.channel.session.service
    service.stop()
    service.tasks.runner = TaskRunner([watched_type(task)(task) for task in service.runner.tasks])
    service.start()
    return service


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", names_of_tasks())
def test_the_others_run_while_one_task_raises(name, service):
    (failing,) = (task for task in service.runner.tasks if type(task).__name__ == name)
    others = [task for task in service.runner.tasks if task is not failing]
    failing.error = CustomError("out of nowhere")
    wait_until(lambda: service.figures()["failed_tasks"] >= 2)
    runs = [task.runs for task in others]
    wait_until(lambda: all(task.runs > before for task, before in zip(others, runs, strict=True)))
    assert service.runner.failing == {name.lower(): "CustomError: out of nowhere"}
    assert service.figures()["failing_tasks"] == 1
    failing.error = None
    wait_until(lambda: not service.runner.failing)


def test_doctor_names_a_task_that_fails_with_its_process(service, broker_url):
    def finding():
        with BrokerAdmin(broker_url) as admin:
            (found,) = admin.examine(["maintenance"])
        return found

    assert finding().level == "ok"
    (janitor,) = (task for task in service.runner.tasks if type(task).__name__ == "Janitor")
    janitor.error = CustomError("out of nowhere")
    wait_until(lambda: service.runner.failing)
    wait_until(lambda: finding().level == "danger", 20)
    assert "the maintenance task janitor of " in finding().text
    assert finding().values["error"] == "CustomError: out of nowhere"
