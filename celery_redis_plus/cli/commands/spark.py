"""`celery-redis-plus spark`: the jobs of the Spark pipeline."""

from __future__ import annotations

import argparse
import functools

import click

from celery_redis_plus.cli.target import refuse_given_before

DESCRIPTION = """\
Keep what happened to every message, and make tables and a report of it.

    celery-redis-plus spark ingest --url redis://localhost:6379/0 --root tables --once
    celery-redis-plus spark aggregate --root tables
    celery-redis-plus spark report --root tables --output report.html

Needs the extra "spark", and queues whose event log is on (event_log=True). Only `replay` and --engine spark need Java 17.
"""


# The jobs parse their own line: `spark-submit` starts them without this program.
@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    short_help="Stream events into tables, and report on them.",
)
@click.argument("line", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, line: tuple[str, ...]) -> int:
    """Stream lifecycle events into tables, aggregate them, and report on them."""
    from celery_redis_plus.spark.memory import use_plain_allocator

    # Before anything imports Arrow.
    use_plain_allocator()
    from celery_redis_plus.spark import jobs
    from celery_redis_plus.spark.job_arguments import add_arguments

    refuse_given_before(ctx, "allowed is --url or --url-env, and --prefix, behind the job's name")
    parser = argparse.ArgumentParser(
        prog=ctx.command_path, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    # A job may run for days, and its lines are its progress.
    return jobs.run(parser.parse_args(line), functools.partial(print, flush=True))
