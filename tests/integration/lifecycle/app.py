"""The app of these tests' workers: `celery -A tests.integration.lifecycle.app`. Its task ends as it is told."""

from __future__ import annotations

import ast
import os
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

import celery_redis_plus
from celery_redis_plus import configure_app
from tests.chaos.ledger import Pen
from tests.support.judge.recorder import install

pen = Pen()

URL_VARIABLE = "CRP_LIFE_URL"
CONFIG_VARIABLE = "CRP_LIFE_CONFIG"
#: Names a file: the first process of a pool that publishes a retry while there is none makes it, and kills its worker and itself.
KILL_VARIABLE = "CRP_LIFE_KILL_BEHIND_RETRY"


@shared_task(name="life.end", bind=True, max_retries=None)
def end(self: Task, how: str, path: str = "") -> None:
    """End in one way when delivered first, and with success when redelivered; `always` fails each time."""
    if how == "always":
        raise ValueError("as asked")
    if self.request.delivery_info["redelivered"]:
        if self.request.delivery_info["routing_key"] == "manual":
            raise Ignore
        return
    if how == "retry" and self.request.retries:
        return
    {
        "retry": lambda: self.retry(countdown=0),
        "ignored": lambda: _raise(Ignore()),
        "rejected": lambda: _raise(Reject("as asked")),
        "requeue": lambda: _raise(Reject("as asked", requeue=True)),
        "failure": lambda: _raise(ValueError("as asked")),
        "soft": lambda: time.sleep(60),
        "soft_caught": _sleep_until_the_soft_limit,
        "time_limit": lambda: time.sleep(60),
        "worker_lost": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "wait": lambda: _wait_for(path),
    }.get(how, lambda: None)()


def _raise(error: Exception) -> None:
    raise error


def _sleep_until_the_soft_limit() -> None:
    with suppress(SoftTimeLimitExceeded):
        time.sleep(60)


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


@shared_task(name="life.fate", bind=True, max_retries=None)
def fate(self: Task, name: str, how: str) -> None:
    """End in one way, and in the ledger of the chaos tests; what asks to be delivered again succeeds then."""
    again = bool(self.request.delivery_info["redelivered"])
    pen.write("start", name, redelivered=again)
    if how == "kill" and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "requeue" and not again:
        pen.write("reject", name)
        raise Reject("as asked", requeue=True)
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0.01)
    pen.write("end", name, redelivered=again)
    if how == "failure":
        raise ValueError("as asked")
    if how == "rejected":
        raise Reject("as asked")


@shared_task(name="life.own", bind=True, ack_policy="nack_on_error")
def own(self: Task) -> None:
    """Fail when delivered first."""
    if not self.request.delivery_info["redelivered"]:
        raise ValueError("as asked")


@shared_task(name="life.settle", bind=True, max_retries=None)
def settle(self: Task, steps: str, then: str, path: str = "") -> None:
    """Settle the message in `steps`, `nack 0.5, ack`, and go on; succeed when delivered again, or retried."""
    if self.request.delivery_info["redelivered"] or self.request.retries:
        return
    for step in steps.split(", "):
        how, _, value = step.partition(" ")
        argument = {"nack": lambda: float(value), "reject": lambda: value}[how]() if value else None  # noqa: B023
        getattr(celery_redis_plus, how)(*([argument] if value else []))
    if path:
        Path(path).touch()
    {
        "return": lambda: None,
        "raise": lambda: _raise(ValueError("as asked")),
        "reject": lambda: _raise(Reject("too late", requeue=True)),
        "retry": lambda: self.retry(countdown=0),
        "wait": lambda: time.sleep(60),
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }[then]()


@shared_task(name="life.pay", bind=True)
def pay(self: Task, store: str, order: int, gate: str) -> None:
    """Write a state with the fencing token; a first delivery waits at the gate before it writes."""
    token = celery_redis_plus.fence()
    redelivered = bool(self.request.delivery_info["redelivered"])
    with closing(sqlite3.connect(store, timeout=30, isolation_level=None)) as db:
        db.execute("INSERT INTO begun VALUES (?, ?, ?)", (order, token, redelivered))
        if not redelivered:
            _wait_for(gate)
        written = db.execute("UPDATE orders SET fence = ? WHERE id = ? AND fence < ?", (token, order, token)).rowcount
        db.execute("INSERT INTO ended VALUES (?, ?, ?)", (order, token, written))


class RefusedError(Exception):
    """Says itself when to try again."""

    def __init__(self, retry_after: float | None = None) -> None:
        """Take seconds."""
        super().__init__("slow down")
        self.retry_after = retry_after


class GoneError(Exception):
    """Nothing is left to do."""


#: What `life.tries` may do in a try.
TRIES = {
    "connection": lambda: _raise(ConnectionRefusedError("no answer")),
    "os": lambda: _raise(OSError("disk")),
    "refused": lambda: _raise(RefusedError(0.2)),
    "refused silently": lambda: _raise(RefusedError()),
    "timeout": lambda: _raise(TimeoutError("late")),
    "value": lambda: _raise(ValueError("as asked")),
    "key": lambda: _raise(KeyError("shop")),
    "gone": lambda: _raise(GoneError()),
    "snooze": lambda: celery_redis_plus.snooze(0.05, "not yet", limit=3),
    "return": lambda: None,
}


@shared_task(
    name="life.tries",
    bind=True,
    retry_on={
        ConnectionError: "exponential first=20ms limit=2",
        OSError: 0.02,
        RefusedError: celery_redis_plus.from_error("retry_after", otherwise="list delays=10ms"),
        TimeoutError: lambda _, number: 0.01 if number < 2 else None,
    },
    dead_on=(ValueError,),
    ignore_on=(GoneError,),
)
def tries(self: Task, steps: str) -> None:
    """Do in each try the next of `steps`, and the last one in all later tries."""
    number = self.request.retries + (self.request.headers or {}).get("x-snoozes", 0)
    each = steps.split(", ")
    TRIES[each[min(number, len(each) - 1)]]()


def _kill_behind_retry(headers: Mapping[str, Any], **_: Any) -> None:
    mark = Path(os.environ[KILL_VARIABLE])
    if (headers["retries"] or "x-snoozes" in headers) and not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if KILL_VARIABLE in os.environ:
    signals.after_task_publish.connect(_kill_behind_retry, weak=False)


def make_app(url: str, configured: dict[str, Any], settings: dict[str, Any]) -> Celery:
    """Return an app; `configured` are arguments of configure_app."""
    app = Celery("life", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, **settings)
    return configure_app(app, **configured)


def _app_of_worker() -> Celery | None:
    if URL_VARIABLE not in os.environ:
        return None
    install()
    return make_app(os.environ[URL_VARIABLE], *ast.literal_eval(os.environ[CONFIG_VARIABLE]))


app = _app_of_worker()
