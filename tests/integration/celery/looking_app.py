"""The app of a worker with a task that looks through the worker's requests, as `Consumer.on_close` does, while others end."""

from __future__ import annotations

from celery import shared_task
from celery.worker import state

from tests.integration.celery.app import app, journal
from tests.support.waiting import wait_until

__all__ = ["app"]


@shared_task(name="c.look")
def look(others: int) -> None:
    """Look through the requests that run, of which `others` end meanwhile."""
    wait_until(lambda: len(state.active_requests) == others + 1, 20)
    look_through = iter(state.active_requests)
    next(look_through)
    with journal() as client:
        client.set("others:go", 1)
        wait_until(lambda: len(state.active_requests) == 1, 20)
        list(look_through)
        client.rpush("look:done", "whole")
