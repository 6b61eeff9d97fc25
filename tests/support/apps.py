"""A Celery app for tests: in workers (`celery -A tests.support.apps`) and in the test's process (`make_app`).

Tasks note what they do in lists `ran:NAME` on the broker's server (`Journal`), which outlive killed workers.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from celery import Celery, Task, shared_task

BROKER_VARIABLE = "CRP_TEST_BROKER"
CONFIG_VARIABLE = "CRP_TEST_CONFIG"
JOURNAL_DB = 1


#: A URL without a database, which leads to the server that tests share, or to the one beside it.
PLAIN_VARIABLE = "CRP_TEST_PLAIN"


def plain_url(broker: str, db: int | None = None) -> str:
    """Return the address in `broker` as redis-py understands it, with the database `db` if one is given."""
    is_plain = broker.startswith(("redis://", "rediss://", "redisplus://")) and "://worker:" not in broker
    if not is_plain and db is not None:
        # A broker of another topology, whose server is plain for tests; or a user with the rights of that role only.
        return f"{os.environ[PLAIN_VARIABLE]}/{db}"
    parts = urlsplit(broker)
    scheme = "rediss" if parts.scheme.endswith("ss") else "redis"
    return parts._replace(scheme=scheme, path=parts.path if db is None else f"/{db}", query="").geturl()


class Journal:
    """What tasks did, in the order in which they did it."""

    def __init__(self, broker: str) -> None:
        self._client = redis.Redis.from_url(plain_url(broker, JOURNAL_DB), decode_responses=True)

    def note(self, name: str, entry: str) -> None:
        self._client.rpush(f"ran:{name}", entry)

    def read(self, name: str) -> list[str]:
        return self._client.lrange(f"ran:{name}", 0, -1)  # type: ignore[return-value]

    def close(self) -> None:
        self._client.close()


# By process: a forked child must not share its parent's socket.
@cache
def _journal_of(pid: int) -> Journal:
    return Journal(os.environ[BROKER_VARIABLE])


@shared_task(name="tests.add")
def add(x: int, y: int) -> int:
    return x + y


@shared_task(name="tests.note")
def note(name: str, entry: str, sleep_s: float = 0.0) -> str:
    """Note the entry after `sleep_s`; `started:NAME` has it before."""
    journal = _journal_of(os.getpid())
    if sleep_s:
        journal.note(f"started:{name}", entry)
        time.sleep(sleep_s)
    journal.note(name, entry)
    return entry


@shared_task(name="tests.note_when")
def note_when(name: str, entry: str, path: str, limit_s: float = 60.0) -> None:
    """Note `started:NAME`, and the entry when there is such a file: no fault of the server keeps anybody from making it."""
    journal = _journal_of(os.getpid())
    journal.note(f"started:{name}", entry)
    deadline = time.monotonic() + limit_s
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    journal.note(name, entry)


@shared_task(name="tests.hold_gil")
def hold_gil(name: str, entry: str, seconds: float) -> None:
    """Note `started:NAME`, let no other thread of the process run for so long, and note the entry."""
    journal = _journal_of(os.getpid())
    journal.note(f"started:{name}", entry)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    journal.note(name, entry)


@shared_task(name="tests.note_time")
def note_time(name: str) -> None:
    """Note the wall clock's time at the start, in seconds."""
    _journal_of(os.getpid()).note(name, repr(time.time()))


@shared_task(name="tests.retry", bind=True, max_retries=10)
def retry(self: Task, name: str, times: int, countdown: float = 0.1) -> int:
    """Note each attempt, and retry until there were `times` retries."""
    retries: int = self.request.retries
    _journal_of(os.getpid()).note(name, str(retries))
    if retries < times:
        raise self.retry(countdown=countdown)
    return retries


def make_app(broker: str, **config: Any) -> Celery:
    """Return an app on `broker` with results on the same server; close it with `app.close()`."""
    app = Celery("tests", broker=broker, backend=plain_url(broker, JOURNAL_DB), set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_send_task_events=False, **config)
    return app


def close_results(app: Celery) -> None:
    """Close what an app has open to its results' server, for good.

    Closing Celery's client leaves the connections of its pool to the garbage collector, which may meet the socket before the
    connection that would close it: a ResourceWarning in whatever test runs then.
    """
    # Results that are collected later would use the connection again.
    gc.collect()
    app.backend.result_consumer.stop()
    # What is still collected later has nothing to unsubscribe from.
    app.backend.result_consumer.cancel_for = lambda _: None
    app.backend.client.connection_pool.disconnect()


def _app_of_worker() -> Celery | None:
    """Build the app that `celery -A tests.support.apps` finds; its configuration comes as Python literals."""
    import ast

    broker = os.environ.get(BROKER_VARIABLE)
    if not broker:
        return None
    return make_app(broker, **ast.literal_eval(os.environ.get(CONFIG_VARIABLE, "{}")))


app = _app_of_worker()
