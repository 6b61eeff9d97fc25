"""Runs the samples of a whole run: each in a fresh process, contenders interleaved."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import RABBITMQ, Contender, delete_amqp_queues
from benchmarks.meters import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.measurements import Measurement

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Sample:
    """What one contender did in one round of one measurement: figures, or why there are none."""

    measurement: str
    contender: str
    round: int
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that decides what a run does."""

    measurements: list[Measurement]
    contenders: list[Contender]
    server_address: str
    quick: bool
    rounds: int | None = None
    one_core: bool = True

    def turns(self) -> Iterator[tuple[Measurement, Contender, int]]:
        """A B, B A, A B ...: whoever goes first changes, so that drift hits both alike."""
        for measurement in self.measurements:
            takers = [c for c in self.contenders if c.name in measurement.contenders]
            for number in range(self.rounds or measurement.rounds[0 if self.quick else 1]):
                for contender in takers if number % 2 == 0 else reversed(takers):
                    yield measurement, contender, number


def run_all(plan: Plan, tell: Callable[[str], None]) -> Iterable[Sample]:
    """Every turn of the plan, one after the other."""
    for measurement, contender, number in plan.turns():
        sample = run_sample(plan, measurement, contender, number)
        outcome = f"FAILED: {sample.error}" if sample.error else f"{sample.seconds:.1f} s"
        tell(f"{measurement.name} {number + 1} {contender.name}: {outcome}")
        yield sample


def run_sample(plan: Plan, measurement: Measurement, contender: Contender, number: int) -> Sample:
    """One sample on a clean server, in a directory of its own."""
    _clean(plan.server_address, contender)
    directory = tempfile.mkdtemp(prefix="crp-bench-")
    request = {
        "measurement": measurement.name,
        "contender": contender.as_json(),
        "quick": plan.quick,
        "server_address": plan.server_address,
        "directory": directory,
    }
    core = _core_to_share() if plan.one_core and measurement.one_core else None
    began = time.monotonic()
    try:
        with _sharing(core, plan.server_address):
            answer = _ask(json.dumps(request | {"core": core}), measurement.timeout_s)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        _clean(plan.server_address, contender)
    seconds = time.monotonic() - began
    return Sample(measurement.name, contender.name, number, seconds, answer.get("figures", {}), answer.get("error"))


def _core_to_share() -> int | None:
    return max(os.sched_getaffinity(0)) if sys.platform == "linux" else None


@contextmanager
def _sharing(core: int | None, server_address: str) -> Iterator[None]:
    """The server runs on ``core`` only; the sample puts itself there too."""
    if core is None or sys.platform != "linux":
        yield
        return
    server = Server(server_address)
    pid = server.pid()
    server.close()
    before = os.sched_getaffinity(pid)
    os.sched_setaffinity(pid, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(pid, before)


def _ask(request: str, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sample"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: its workers end with it
    )
    try:
        output, errors = process.communicate(request, timeout_s)
    except BaseException as error:
        # Not reaped yet, so the id is still ours.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return {"error": f"no result within {timeout_s:g} s"}
        raise
    lines = output.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": f"the sample ended with code {process.returncode}: {errors[-2000:]}"}
    if "error" in answer and errors:
        print(errors[-4000:], file=sys.stderr)
    return answer


def _clean(server_address: str, contender: Contender) -> None:
    if contender.name == RABBITMQ:
        delete_amqp_queues(contender)
    server = Server(server_address)
    server.flush()
    server.close()
