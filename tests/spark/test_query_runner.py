"""Which disturbances a streaming query outlives, and when it is started again. No Java is needed."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from celery_redis_plus.spark import query_runner

AWAY = "in a task\ncelery_redis_plus.errors.ServerUnreachable: redis://x: Connection refused\n\tat org.apache.spark.x"
SLOW = "Job aborted: org.apache.spark.SparkException: Python worker failed to connect back."
#: Of a stream whose planning Python process was killed: the exception has no words.
UNPLANNED = "[STREAM_FAILED] Query [id = 8d, runId = c3] terminated with exception:  SQLSTATE: XXKST"
UNSTARTED = "An error occurred while calling o117.load.\n: java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt"
WRONG = "celery_redis_plus.errors.AuthenticationFailed: redis://x: wrong password"
LOST = "celery_redis_plus.errors.EventsLost: queue 'q': 3 events were trimmed"


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (AWAY, True),
        (SLOW, True),
        (UNPLANNED, True),
        (UNSTARTED, True),
        (UNSTARTED.replace("EOFException", "IOException: Stream closed"), True),
        (f"{UNPLANNED}\nCaused by: java.io.EOFException\n\tat x", True),
        (UNPLANNED.replace("exception:  ", "exception: Stream closed "), True),
        ("[STREAM_FAILED] Query [id = 8d, runId = c3] terminated with exception: no such table SQLSTATE: XXKST", False),
        ("celery_redis_plus.errors.ServerLoading: x: it reads its data", True),
        (WRONG, False),
        (LOST, False),
        (f"{AWAY}\n{LOST}", False),
        ("celery_redis_plus.errors.TlsFailed: x: certificate", False),
        ("java.lang.IllegalStateException: x", False),
    ],
)
def test_only_what_passes_by_itself_is_outlived(text, passes):
    assert query_runner.passes(text) is passes


@pytest.mark.parametrize("text", [UNPLANNED, UNSTARTED])
def test_a_python_process_that_was_killed_is_told_in_words(text):
    assert "was it killed" in query_runner.one_line(text)


class Query:
    """A query that fails with `text`, or ends by itself."""

    def __init__(self, text=""):
        self.text = text
        self.awaitTermination = self._wait

    def _wait(self, _timeout):
        if self.text:
            raise RuntimeError(self.text)
        return True


def test_it_is_started_again_with_growing_pauses_until_it_ends(monkeypatch):
    monkeypatch.setattr(query_runner, "FIRST_PAUSE_S", 0.01)
    queries, said = [Query(AWAY), Query(SLOW), Query(AWAY), Query()], []
    query_runner.run_query(lambda: queries.pop(0), threading.Event(), said.append, restarts=True)
    assert not queries
    assert len(said) == 3
    assert said[0] == "redis://x: Connection refused; it starts again in 0 s"


@pytest.mark.parametrize(("lost", "fails"), [(3, False), (4, True)])
def test_one_that_runs_once_is_started_again_after_a_slow_worker(monkeypatch, lost, fails):
    monkeypatch.setattr(query_runner, "FIRST_PAUSE_S", 0.01)
    queries = [Query(SLOW)] * lost + [Query()]
    with pytest.raises(RuntimeError) if fails else nullcontext():
        query_runner.run_query(lambda: queries.pop(0), threading.Event(), print, restarts=False)
    assert len(queries) == int(fails)


@pytest.mark.parametrize(("text", "restarts"), [(WRONG, True), (AWAY, False)])
def test_it_ends_with_an_error_that_stays_or_where_it_runs_once(text, restarts):
    with pytest.raises(RuntimeError):
        query_runner.run_query(lambda: Query(text), threading.Event(), print, restarts=restarts)


def test_a_signal_ends_the_pause():
    began = time.monotonic()
    with query_runner.stopped_by_signals() as stop:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        query_runner.run_query(lambda: Query(AWAY), stop, lambda _line: None, restarts=True)
        assert stop.is_set()
    assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
