"""`celery-redis-plus spark`: the jobs of the Spark pipeline."""

from __future__ import annotations

import argparse
import functools

from celery_redis_plus.cli.command import Command

DESCRIPTION = """\
Keep what happened to every message, and make tables and a report of it, with Spark.

    celery-redis-plus spark ingest --url redis://localhost:6379/0 --root tables --once
    celery-redis-plus spark aggregate --root tables
    celery-redis-plus spark report --root tables --output report.html

Needs the extra "spark" and Java 17, and queues whose event log is on (event_log=True).
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.spark import jobs

    jobs.add_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.spark import jobs

    # A job may run for days, and its lines are its progress.
    return jobs.run(arguments, functools.partial(print, flush=True))


COMMAND = Command(
    summary="stream lifecycle events into tables, aggregate them, report on them",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
