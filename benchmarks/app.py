"""The Celery app that every contender's worker and publisher runs; configured by environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from benchmarks.contenders import OURS, TASK_QUEUE, register_transports
from benchmarks.journal import READY, Journal
from celery_redis_plus import configure_app

SPEC_VARIABLE = "CRP_BENCH_APP"


def _make_app(spec: dict[str, Any]) -> Celery:
    register_transports()
    app = Celery("benchmarks", broker=spec["url"], set_as_current=True)
    app.conf.update(
        broker_transport_options=spec["transport_options"],
        broker_connection_retry_on_startup=True,
        task_default_queue=TASK_QUEUE,
        task_ignore_result=True,
        worker_hijack_root_logger=True,
        **spec.get("conf", {}),
    )
    if spec["name"] == OURS:
        configure_app(app)
    return app


_spec: dict[str, Any] = json.loads(os.environ[SPEC_VARIABLE])
app = _make_app(_spec)
_journal = Journal(Path(_spec["journal"]))


@app.task(name="benchmarks.noop")  # type: ignore[untyped-decorator]
def noop(seq: int, payload: str = "", due: float = 0.0) -> None:  # noqa: ARG001 - it is there to travel
    """Note that it ran, and nothing else."""
    _journal.note(seq, due)


def _note_ready(**_: Any) -> None:
    _journal.note(READY)


worker_ready.connect(_note_ready)
