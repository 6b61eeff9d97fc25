"""Connects the remote control of a gevent or eventlet worker again, which has a connection of its own there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.worker.pidbox import gPidbox

from celery_redis_plus.integration import worker_compat
from celery_redis_plus.integration.patching import wrap

logger = logging.getLogger(__name__)

#: Seconds until a lost connection is opened again: where the consumer's is lost as well, that begins the remote control anew.
PAUSE_S = 1.0


def reconnect_remote_control() -> None:
    """Have the greenlet of the remote control go on after the loss of its connection; idempotent.

    Celery's ends with the first error, and only the loss of the consumer's own connection begins another one (Celery 5.7,
    `gPidbox.loop`): until then the worker answers no `inspect` and no `control`.
    """
    wrap(gPidbox, "loop", _loop)


def _loop(loop: Callable[..., Any], pidbox: Any, consumer: Any) -> None:
    while True:
        try:
            loop(pidbox, consumer)
        except consumer.connection_errors as error:
            # Another one after it was stopped, which the consumer does when it begins anew; none until the next start.
            shutdown = worker_compat.remote_control_end(pidbox)
            logger.warning("remote control: the connection was lost (%s); connecting again", error)
            time.sleep(PAUSE_S)
            if shutdown is not None and worker_compat.remote_control_end(pidbox) is shutdown and not shutdown.is_set():
                continue
        return
