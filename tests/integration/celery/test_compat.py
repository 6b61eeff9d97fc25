"""What happens where a version of Celery does not have an internal name that this package uses."""

import logging

import pytest

from tests.integration.celery_patches.app_of_another_version import VARIABLE

APP = "tests.integration.celery_patches.app_of_another_version"


@pytest.mark.parametrize("setup", ["configured", "alone"])
def test_a_worker_without_any_optional_name_runs_tasks_and_says_what_is_off(setup, celery_worker, celery_app, notes):
    worker = celery_worker(setup, app=APP, pool="prefork", env={VARIABLE: ""})
    app = celery_app()
    for number in range(3):
        app.send_task("c.note", ("optional", str(number)))
    notes.wait_for("optional", 3)

    off = [line for line in worker.log().splitlines() if ". Off: " in line]
    assert off
    assert len(off) == len(set(off))
    assert any("default_steps" in line for line in off) is (setup == "alone")
    assert any("_process_task" in line for line in off) is (setup == "configured")


def test_all_names_present_say_nothing(caplog):
    from celery import Celery

    from celery_redis_plus import configure_app

    with caplog.at_level(logging.WARNING):
        configure_app(Celery("x", broker="redis://127.0.0.1:1", set_as_current=False))

    assert caplog.messages == []
