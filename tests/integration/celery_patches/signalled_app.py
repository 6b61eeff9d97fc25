"""The app of `sleepy_app`, whose worker gets SIGTERM as the turn of its loop begins that follows its first task."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import signals

from celery_redis_plus.consumer.server_consumer import ServerConsumer
from tests.integration.celery_patches.sleepy_app import app

__all__ = ["app"]

_begin_tick, _consumers, _ran = ServerConsumer.begin_tick, [], []


def _begin_signalled(consumer: ServerConsumer) -> None:
    _consumers[:] = [consumer]
    if _ran:
        _ran.clear()
        os.kill(os.getpid(), signal.SIGTERM)
    _begin_tick(consumer)


@signals.task_postrun.connect
def _have_another_turn(**_: Any) -> None:
    _ran.append(True)
    _consumers[0].session.waker.wake()


ServerConsumer.begin_tick = _begin_signalled  # type: ignore[method-assign]
