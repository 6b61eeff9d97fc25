"""What a new user does: an app by its broker URL alone, a worker, a task, a countdown; from the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from celery import Celery

import celery_redis_plus
from celery_redis_plus.testing.server import EmbeddedServer

APP = """
import os
from celery import Celery

app = Celery("smoke", broker=os.environ["SMOKE_BROKER"], backend=os.environ["SMOKE_BACKEND"])


@app.task(name="add")
def add(x, y):
    return x + y
"""


def main() -> None:
    where = Path(celery_redis_plus.__file__)
    assert "site-packages" in where.parts, f"this is not the installed package: {where}"
    Path("smoke_app.py").write_text(APP)
    with EmbeddedServer() as server:
        broker, backend = server.url(), server.url(1, "redis")
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "smoke_app",
                "worker",
                "--concurrency",
                "2",
                "--loglevel",
                "INFO",
            ],
            env={**os.environ, "SMOKE_BROKER": broker, "SMOKE_BACKEND": backend, "C_FORCE_ROOT": "1"},
            start_new_session=True,
        )
        try:
            with Celery("smoke", broker=broker, backend=backend) as app:
                assert app.send_task("add", (20, 22)).get(timeout=60) == 42
                assert app.send_task("add", (1, 2), countdown=1).get(timeout=60) == 3
        finally:
            worker.terminate()
            try:
                status = worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
                raise
    assert status == 0, f"the worker ended with status {status}"
    print(f"ok: celery-redis-plus {celery_redis_plus.__version__} from {where.parent.name} in site-packages")


if __name__ == "__main__":
    main()
