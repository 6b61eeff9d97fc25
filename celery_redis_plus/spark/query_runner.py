"""Keeps a streaming query going: it starts again after a disturbance that passes, and ends when a signal says so."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_redis_plus import errors
from celery_redis_plus.shards.absent_shard import PASSING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

#: Seconds before the first start after a disturbance; each further one doubles it, up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: Seconds between two looks at whether a signal has come: a call into Java does not end for one.
SIGNAL_POLL_S = 0.5

_LASTING = (errors.TlsFailed,)
#: So often a query that runs once is started again after such a worker: Spark waits for ten seconds, which no setting changes.
MOST_WORKERS_LOST = 3
#: What Spark says of a Python worker that a busy machine has started too late, or that was killed.
_WORKER_LOST = ("Python worker failed to connect back", "Python worker exited unexpectedly")
#: And where one was killed that Java talks to: one that plans micro-batches, or begins the others. Their pipe says no more.
_PIPE_ENDED = "Stream closed|Broken pipe|Connection reset"
_PYTHON_KILLED = re.compile(
    rf"terminated with exception: +(?:(?:null|{_PIPE_ENDED}) +)?SQLSTATE: XXKST"
    rf"|^(?:Caused by)?: java\.(?:io|net)\.(?:EOFException|(?:IO|Socket)Exception: (?:{_PIPE_ENDED}))$",
    re.MULTILINE,
)

_OURS = re.compile(r"^\S*celery_redis_plus\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)


class GrowingPause:
    """The pause before the next start after a disturbance: twice the one before, up to the longest.

    After a run that was longer than `calm_s` seconds it is the first one again: that was another disturbance.
    """

    def __init__(self, calm_s: float = LONGEST_PAUSE_S) -> None:
        self._calm_s = calm_s
        self._next_s = FIRST_PAUSE_S

    def after(self, ran_s: float) -> float:
        """Return the seconds to wait after a run of `ran_s` seconds."""
        pause_s = FIRST_PAUSE_S if ran_s > self._calm_s else self._next_s
        self._next_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s


def run_query(
    start: Callable[[], StreamingQuery], stop: threading.Event, say: Callable[[str], None], *, restarts: bool
) -> None:  # fmt: skip
    """Run a query until it ends by itself, or `stop` is set.

    Args:
        start: starts it, where the last one stopped.
        stop: ends it.
        say: called with a line on each disturbance.
        restarts: start it again after a disturbance that passes, however often; else after a Python worker that was lost, thrice.

    Raises:
        StreamingQueryException: it failed, and not for such a disturbance.
    """
    pause, lost = GrowingPause(), 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            query = start()
            while not query.awaitTermination(SIGNAL_POLL_S):
                if stop.is_set():
                    query.stop()
                    return
        except Exception as error:
            # A service manager signals the JVM as well.
            if stop.is_set():
                return
            lost += _worker_lost(str(error))
            if not passes(str(error)) or not (restarts or (_worker_lost(str(error)) and lost <= MOST_WORKERS_LOST)):
                raise
            pause_s = pause.after(time.monotonic() - began)
            say(f"{one_line(str(error))}; it starts again in {pause_s:.0f} s")
            stop.wait(pause_s)
        else:
            return


def passes(text: str) -> bool:
    """Return whether a query that failed with this error may go on later: the server was away, or a Python worker too slow."""
    kinds = [getattr(errors, name, object) for name, _ in _OURS.findall(text)]
    return is_passing(kinds[-1]) if kinds else _worker_lost(text)


def is_passing(kind: type) -> bool:
    """Return whether an error of this class passes: the server restarts, fails over or is away for a while."""
    return issubclass(kind, PASSING) and not issubclass(kind, _LASTING)


def _worker_lost(text: str) -> bool:
    return not _OURS.search(text) and (any(phrase in text for phrase in _WORKER_LOST) or bool(_PYTHON_KILLED.search(text)))


def one_line(text: str) -> str:
    """Return what matters of a Spark error: the last error that one of our Python processes raised, else the first line.

    A failure in a task reaches the driver as a Python traceback inside a Java one, 60 lines and more.
    """
    if _PYTHON_KILLED.search(text):
        return "a Python process of Spark has ended: was it killed, by the kernel for want of memory?"
    ours = [message for _, message in _OURS.findall(text)]
    python = _PYTHON.findall(text)
    found = ours or python or [line for line in text.splitlines() if line.strip()] or ["Spark failed without a message"]
    return str(found[-1] if ours or python else found[0]).strip()


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; the second Ctrl-C does what it did before."""
    stop = threading.Event()
    before: dict[int, object] = {}

    def handle(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, before[number])  # type: ignore[arg-type] # as it was returned

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as above
