"""`celery-redis-plus counters`: what has happened in queues."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_json, print_table
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Show what has happened in queues.")
@with_target
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@json_option
def command(target: Target, *, queues: tuple[str, ...], as_json: bool) -> None:
    """Show what has happened in queues since they were declared, and what is in them: messages published, delivered, acked,
    nacked, dead-lettered, expired; publishes that were slowed down, had to wait, or were refused. docs/counters.md tells what
    each counter means.

    --json prints one object a queue, one a line.
    """
    with target.admin() as admin:
        counted = {queue: asdict(admin.counters(queue)) for queue in queues}
    if as_json:
        for queue, counts in counted.items():
            print_json({"queue": queue, **counts})
        return
    names = next(iter(counted.values()))
    print_table(("COUNTER", *counted), [[name, *(counts[name] for counts in counted.values())] for name in names])
