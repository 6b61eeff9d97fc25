"""Tells when a process, or its way to the server, stood still though no fault said so: on a machine with much load.

It is a thread of its own that shares nothing with the package. A stuck thread of the package is no excuse.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import redis

from tests.support.judge import records
from tests.support.judge.recorder import note

#: Seconds between two looks, and for an answer.
LOOK_S, ANSWER_S = 0.25, 1.0


def start_canary(url: str, hole_s: float) -> None:
    """Note a silence of this process where the server has not answered it for `hole_s`."""
    threading.Thread(target=_live, args=(url, hole_s), name="canary", daemon=True).start()


def _live(url: str, hole_s: float) -> None:
    client = redis.Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, client_name="canary")
    heard_at = time.monotonic()
    while True:
        with suppress(redis.RedisError):
            client.ping()
            now = time.monotonic()
            if now - heard_at > hole_s:
                note(records.SILENT, tick=heard_at)
                note(records.HEARD)
            heard_at = now
        time.sleep(LOOK_S)
