"""`celery-redis-plus counters`: what has happened in queues."""

from __future__ import annotations

from dataclasses import asdict, fields

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_json, print_table
from celery_redis_plus.cli.target import Target, with_target

#: Queues that have a column each. Of more, each has a row, and counters that are 0 for all of them are left out.
MAX_COLUMNS = 3


@click.command(short_help="Show what has happened in queues.")
@with_target
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@json_option
def command(target: Target, *, queues: tuple[str, ...], as_json: bool) -> None:
    """Show what has happened in queues since they were declared, and what is in them. QUEUE is a name or a pattern such as
    'shop.*'. More than three queues have a row each, without the counters that are 0 for all of them.

    Messages are published, delivered, acked, nacked, dead-lettered, expired; publishes are slowed down, have to wait, or are
    refused. docs/metrics.md tells what each counter means.

    --json prints one object a queue, one a line.
    """
    from celery_redis_plus.broker.queues.counters import Counters

    with target.admin() as admin:
        counted = {queue: asdict(counts) for queue, counts in admin.all_counters(*queues).items()}
    if as_json:
        for queue, counts in counted.items():
            print_json({"queue": queue, **counts})
        return
    if not counted:
        click.echo(f"no queue matches {', '.join(map(repr, queues))}", err=True)
        return
    names = [one.name for one in fields(Counters)]
    if len(counted) > MAX_COLUMNS:
        told = [name for name in names if any(counts[name] for counts in counted.values())]
        print_table(("QUEUE", *told), [[queue, *(counts[name] for name in told)] for queue, counts in counted.items()])
        return
    print_table(("COUNTER", *counted), [[name, *(counts[name] for counts in counted.values())] for name in names])
