"""How a worker comes by our bootstep: by its name, so that a process which only publishes does not load it."""

from __future__ import annotations

from typing import Final

from celery import current_app

#: What a worker does beyond consuming, as Celery's lists of steps name it.
STEP: Final = "celery_redis_plus.integration.worker:BrokerStep"


def install_bootstep() -> None:
    """Have every consumer that is built from now on include the step where its broker is ours; idempotent.

    An app without `configure_app` has no list of steps that we know of, so the step stands among Celery's own. A worker makes
    its app the current one before it builds its consumer; where that is a configured app, nothing is changed.
    """
    if STEP in current_app.steps["consumer"]:
        return
    # Only now: `configure_app` loads this module in each process, and this one loads Celery's worker.
    from celery_redis_plus.integration import worker_compat

    steps = worker_compat.default_steps()
    if steps is not None and STEP not in steps:
        worker_compat.set_default_steps([*steps, STEP])
