"""`celery-redis-plus resume`: end a queue's pause."""

from __future__ import annotations

import argparse

from celery_redis_plus.cli.command import Command

DESCRIPTION = """\
End the pause of a queue: its consumers go on at once.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    add_connection_arguments(parser)
    parser.add_argument("queue", metavar="QUEUE", help="the queue's name")


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    with operator_for(arguments) as operator:
        was_paused = operator.resume(arguments.queue)
    print(f"queue {arguments.queue!r} {'goes on' if was_paused else 'was not paused'}")
    return 0


COMMAND = Command(
    summary="end the pause of a queue",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
