"""Which tasks a worker knows to be running."""

from __future__ import annotations

from tests.support.program import run_python


def test_worker_inside_another_program_knows_what_runs(server):
    printed = run_python(
        "from celery import Celery\n"
        "from celery.contrib.testing.worker import start_worker\n"
        f"app = Celery('inside', broker={server.url()!r}, backend='cache+memory://')\n"
        "app.conf.task_default_queue = 'inside'\n"
        "@app.task\n"
        "def increment(x):\n"
        "    return x + 1\n"
        "with start_worker(app, pool='threads', perform_ping_check=False):\n"
        "    from celery_redis_plus.maintenance.process_services import services\n"
        "    print(increment.delay(1).get(timeout=10), [type(one.active_tasks).__name__ for one in services()])"
    )

    assert printed == "2 ['RunningTasks']"
