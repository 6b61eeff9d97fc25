"""`celery-redis-plus pause`: let a queue's messages wait."""

from __future__ import annotations

import argparse

from celery_redis_plus.cli.command import Command

DESCRIPTION = """\
Pause a queue: its consumers get nothing more, publishers go on, and what is in
work goes on, too. A pause survives restarts of workers and server. It ends with
'celery-redis-plus resume', or by itself after --for. Workers log it.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    add_connection_arguments(parser)
    parser.add_argument("queue", metavar="QUEUE", help="the queue's name")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; others will want to know")
    parser.add_argument("--for", dest="for_s", type=float, metavar="SECONDS", help="end the pause by itself after this time")


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    with operator_for(arguments) as operator:
        operator.pause(arguments.queue, arguments.reason, arguments.for_s)
        pause = operator.paused(arguments.queue)
    end = "it is resumed" if pause is None or pause.until is None else pause.until.isoformat(timespec="seconds")
    print(f"queue {arguments.queue!r} is paused until {end}")
    return 0


COMMAND = Command(
    summary="let a queue's messages wait",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
