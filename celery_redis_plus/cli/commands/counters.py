"""`celery-redis-plus counters`: what has happened in queues."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from celery_redis_plus.cli.command import Command

DESCRIPTION = """\
Show what has happened in queues since they were declared, and what is in them:
messages published, delivered, acked, nacked, dead-lettered, expired; publishes
that were slowed down, had to wait, or were refused. docs/flow-control.md tells
what each counter means.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    add_connection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one object, by queue")
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="the queues' names")


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    with operator_for(arguments) as operator:
        counted = {queue: asdict(operator.counters(queue)) for queue in arguments.queues}
    if arguments.json:
        print(json.dumps(counted))
        return 0
    table = [["", *counted], *([name, *map(_text, row)] for name, *row in _rows(counted))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *rest in table:
        print(first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)))
    return 0


def _rows(counted: dict[str, dict[str, int | float]]) -> list[tuple[str | int | float, ...]]:
    names = next(iter(counted.values()))
    return [(name, *(counts[name] for counts in counted.values())) for name in names]


def _text(value: float | str) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


COMMAND = Command(
    summary="show what has happened in queues",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
