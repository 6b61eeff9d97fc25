"""Publishes a task with a countdown and runs it, traced by ddtrace, whose agent is at DD_TRACE_AGENT_URL."""

from __future__ import annotations

import os

import ddtrace

ddtrace.patch(celery=True)

from celery import Celery  # noqa: E402 - patched before
from celery.contrib.testing.worker import start_worker  # noqa: E402


def main() -> None:
    """Run one task."""
    app = Celery("traced", broker=os.environ["CRP_TEST_BROKER"], backend=os.environ["CRP_TEST_REDIS"])

    @app.task(name="p.traced")
    def traced() -> int:
        return 1

    with start_worker(app, pool="solo", perform_ping_check=False):
        traced.apply_async(countdown=0.3).get(timeout=30)


if __name__ == "__main__":
    main()
