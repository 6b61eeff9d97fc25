"""Tells when a process, or its way to the server, stood still though no fault said so: on a machine with much load.

It is a thread of its own that shares nothing with the package. A stuck thread of the package is no excuse. It holds no lock of
Python (no import, no logging, no library): a pool process that is forked meanwhile would wait for that for ever.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tests.support.judge import records
from tests.support.judge.recorder import note

#: Seconds between two looks, and for an answer.
LOOK_S, ANSWER_S = 0.25, 1.0


def start_canary(url: str, hole_s: float) -> None:
    """Note a silence of this process where the server has not answered it for `hole_s`."""
    port = urlsplit(url).port
    _plain("_thread").start_new_thread(_live, (_plain("socket"), _plain("time"), port, hole_s))


def _plain(name: str) -> ModuleType:
    """Return a module of the standard library as it is without gevent and eventlet: a greenlet would wait for others."""
    if "eventlet" in sys.modules:
        return sys.modules["eventlet"].patcher.original(name)  # type: ignore[no-any-return]
    module = ModuleType(name)
    module.__dict__.update(importlib.import_module(name).__dict__)
    if "gevent" in sys.modules:
        module.__dict__.update(sys.modules["gevent.monkey"].saved.get(name, {}))
    return module


def _live(socket: Any, time: Any, port: int, hole_s: float) -> None:
    connection = None
    heard_at = time.monotonic()
    while True:
        try:
            if connection is None:
                connection = socket.socket()
                connection.settimeout(ANSWER_S)
                # As bytes: a text would be encoded by a codec that is imported for it.
                connection.connect((b"127.0.0.1", port))
            connection.sendall(b"PING\r\n")
            if not connection.recv(100):
                raise ConnectionResetError
            now = time.monotonic()
            if now - heard_at > hole_s:
                note(records.SILENT, tick=heard_at)
                note(records.HEARD)
            heard_at = now
        except OSError:
            with suppress(OSError):
                if connection is not None:
                    connection.close()
            connection = None
        time.sleep(LOOK_S)
