"""The process that `spark run` keeps: started again when it ends, and ended in time. No Java."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from celery_redis_plus.spark import ingest_process
from celery_redis_plus.spark.ingest_process import IngestProcess
from tests.support.waiting import wait_until

PATIENCE_S = 60


def process(code: str) -> IngestProcess:
    return IngestProcess((sys.executable, "-c", code), os.environ)


def test_it_is_started_again_with_growing_pauses():
    child = process("raise SystemExit(3)")
    said = []

    def three_ends():
        if line := child.keep_up():
            said.append(line)
        return len(said) == 3

    wait_until(three_ends, PATIENCE_S)
    child.end()
    assert said == [f"ingest ended with status 3; it starts again in {pause} s" for pause in (1, 2, 4)]
    assert child.starts >= 3


@pytest.mark.parametrize("ignores", [False, True])
def test_it_is_ended_in_time_with_what_it_has_started(monkeypatch, tmp_path, ignores):
    """Spark's Java process ends a moment after its driver, if at all."""
    monkeypatch.setattr(ingest_process, "PATIENCE_S", 1.0)
    inner = "import time; time.sleep(600)"
    child = process(
        "import signal, subprocess, sys, time, pathlib\n"
        f"signal.signal(signal.SIGTERM, signal.{'SIG_IGN' if ignores else 'SIG_DFL'})\n"
        f"pid = subprocess.Popen([sys.executable, '-c', {inner!r}]).pid\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(pid))\n"
        "time.sleep(600)\n"
    )
    assert not child.keep_up()
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(encoding="utf-8"), PATIENCE_S)
    grandchild = int((tmp_path / "pid").read_text(encoding="utf-8"))
    began = time.monotonic()
    child.end()
    assert not child.running
    assert time.monotonic() - began < 30
    wait_until(lambda: not _runs(grandchild), PATIENCE_S)


def _runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for somebody to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
