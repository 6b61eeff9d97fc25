"""Runs one pytest process of a suite on a server of its own."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.demo.server import HOST, EmbeddedServer
from tests.upstream.processes import run_group
from tests.upstream.results import Results
from tests.upstream.skips import skips_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.upstream.suites import Run

ROOT = Path(__file__).resolve().parents[2]
#: For tests that bring no limit of their own: one of Celery's that misses a result would wait for ever.
_TEST_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for."""

    transport: str
    quick: bool
    reruns: bool
    server: Path | None = None
    pytest_options: Sequence[str] = ()


def execute(run: Run, choice: Choice, sources: Path, scratch: Path) -> Results:
    """Run it and return what became of its tests.

    Args:
        run: which tests.
        choice: on which transport, and how.
        sources: the folder that contains the suite's `t/`.
        scratch: a folder for our own files.
    """
    lines = scratch / f"{run.name.replace(' ', '-')}.jsonl"
    started = time.monotonic()
    with EmbeddedServer(binary=choice.server) as server:
        in_time = run_group(
            _command(run, choice, lines),
            cwd=sources,
            env=_environment(run, choice.transport, server),
            deadline_s=run.deadline_s,
        )
    results = Results(run.name, duration_s=time.monotonic() - started)
    results.read(lines)
    if not in_time:
        results.problems.append(f"ended by its deadline of {run.deadline_s:.0f} s")
    return results


def _command(run: Run, choice: Choice, lines: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", *run.paths, "--rootdir=.", "-q", "--tb=short"]
    command += [f"--upstream-run={run.name}", f"--upstream-transport={choice.transport}"]
    command += [f"--upstream-results={lines}", f"--timeout={_TEST_TIMEOUT_S}", "--disable-warnings"]
    command += ["-p", "tests.upstream.plugin", "-p", "no:cacheprovider"]
    if run.suite == "celery":
        command += ["-p", "celery.contrib.pytest"]
    if choice.quick:
        command.append("--upstream-quick")
    if not choice.reruns:
        command += ["-p", "no:rerunfailures"]
    skipped = (skip.pattern for skip in skips_for(run.suite, choice.transport) if skip.is_file)
    command += [f"--ignore={path}" for path in run.ignore]
    command += [f"--ignore=t/integration/{file}" for file in skipped]
    return [*command, *choice.pytest_options]


def _environment(run: Run, transport: str, server: EmbeddedServer) -> dict[str, str]:
    scheme = "redis" if run.takes_over_redis_urls else transport
    return os.environ | {
        # Celery's suite
        "TEST_BROKER": server.url(scheme=scheme),
        "TEST_BACKEND": server.url(scheme="redis"),
        "REDIS_PORT": str(server.port),
        # kombu's, named as its tox-docker does
        "REDIS_6379_TCP": str(server.port),
        "REDIS_HOST": HOST,
        # The plugin, in pytest and in nothing else; and the command `celery`, which some tests start.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
