"""`celery-redis-plus consumers`: who consumes a queue."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from celery_redis_plus.cli.command import Command

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord

DESCRIPTION = """\
List the live consumers of a queue: where they run, their priority and state,
how many messages they hold, and when they were last heard of.
"""
ROW = "{:<18} {:<24} {:>8} {:>8} {:<14} {:>6} {:>9} {:>9} {}"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    add_connection_arguments(parser)
    parser.add_argument("queue", help="the queue's name")


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    with operator_for(arguments) as operator:
        records = operator.consumers(arguments.queue)
    print(ROW.format("CONSUMER", "HOST", "PID", "PRIORITY", "STATE", "HELD", "SINCE", "HEARD", "").rstrip())
    now = datetime.now(UTC)
    for record in records:
        print(_row(record, now))
    return 0


def _row(record: ConsumerRecord, now: datetime) -> str:
    since, heard = (f"{max(0.0, (now - at).total_seconds()):.0f} s" for at in (record.since, record.last_heard))
    active = "active" if record.active else ""
    return ROW.format(
        record.id, record.host[:24], record.pid, record.priority, record.state, record.held, since, heard, active
    ).rstrip()


COMMAND = Command(
    summary="list the consumers of a queue",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
