"""Runs the files of a suite, each in a pytest process on a server of its own."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.testing.server import HOST, EmbeddedServer
from tests.support.topologies import TOPOLOGIES
from tests.upstream.processes import run_group
from tests.upstream.results import Results
from tests.upstream.skips import skips_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.servers import Server
    from tests.upstream.suites import Run

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = Path("t/integration")
#: For tests that bring no limit of their own: one of Celery's that misses a result would wait for ever. The longest
#: that passes takes 240 s.
_TEST_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for."""

    transport: str
    quick: bool
    reruns: bool
    plain: bool = False
    server: Path | None = None
    topology: str = "standalone"
    files: str = "*"
    pytest_options: Sequence[str] = ()


def execute(run: Run, choice: Choice, sources: Path, scratch: Path) -> Results:
    """Run it and return what became of its tests.

    Args:
        run: which tests.
        choice: on which transport, and how.
        sources: the folder that contains the suite's `t/`.
        scratch: a folder for our own files.
    """
    results = Results(run.name)
    skips = {skip.pattern: skip for skip in skips_for(run.suite, choice.transport, choice.topology) if skip.is_file}
    started = time.monotonic()
    for file in _files(run, choice, sources):
        if file in skips:
            results.files_left_out.append(f"{file}: {skips[file].reason}")
            continue
        lines = scratch / f"{run.suite}-{file}.jsonl"
        with EmbeddedServer(binary=choice.server) as server, ExitStack() as deployment:
            broker = server if choice.topology == "standalone" else deployment.enter_context(TOPOLOGIES[choice.topology]())
            in_time = run_group(
                [
                    *_command(run, choice, file, lines),
                    f"--upstream-broker={broker.url()}",
                    f"--upstream-topology={choice.topology}",
                ],
                cwd=sources,
                env=_environment(run, choice.transport, server, broker),
                deadline_s=run.deadline_s,
            )
        results.read(lines)
        if not in_time:
            results.problems.append(f"{file} was ended by its deadline of {run.deadline_s:.0f} s")
    results.duration_s = time.monotonic() - started
    return results


def _files(run: Run, choice: Choice, sources: Path) -> Iterator[str]:
    for pattern in run.paths:
        for path in sorted((sources / _FOLDER).glob(pattern)):
            wanted = path.match(choice.files) and (not choice.quick or run.has_quick(path.name))
            if wanted and path.name not in run.ignore:
                yield path.name


def _command(run: Run, choice: Choice, file: str, lines: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", str(_FOLDER / file), "--rootdir=.", "-q", "--tb=short"]
    command += [f"--upstream-run={run.name}", f"--upstream-transport={choice.transport}"]
    command += [f"--upstream-results={lines}", f"--timeout={_TEST_TIMEOUT_S}", "--disable-warnings"]
    command += ["-p", "tests.upstream.plugin", "-p", "no:cacheprovider"]
    if run.suite == "celery":
        command += ["-p", "celery.contrib.pytest"]
    if choice.quick:
        command.append("--upstream-quick")
    if choice.plain:
        command.append("--upstream-plain")
    if not choice.reruns:
        command += ["-p", "no:rerunfailures"]
    return [*command, *choice.pytest_options]


def _environment(run: Run, transport: str, server: EmbeddedServer, broker: Server) -> dict[str, str]:
    """Return the environment of a file's process: `server` keeps results, and lends its address to URLs that are taken over."""
    return os.environ | {
        # Celery's suite. One of its tests reads the log of tasks, which its tox.ini asks for likewise.
        "TEST_BROKER": server.url(scheme="redis") if run.takes_over_redis_urls else broker.url(scheme=transport),
        "TEST_BACKEND": server.url(scheme="redis"),
        "REDIS_PORT": str(server.port),
        "WORKER_LOGLEVEL": "INFO",
        # kombu's, named as its tox-docker does
        "REDIS_6379_TCP": str(server.port),
        "REDIS_HOST": HOST,
        # The plugin; and the command `celery`, which some tests start.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
