"""`celery-redis-plus purge`: remove what waits in a queue."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import confirm, dry_run_option, json_option, yes_option
from celery_redis_plus.cli.output import Progress, print_json
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Delete what waits in a queue.")
@with_target
@click.argument("queue")
@dry_run_option
@yes_option
@json_option
def command(target: Target, *, queue: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the ready and delayed messages of a queue for good. Unacked messages and dead letters stay.

    The messages leave the queue in one step. Their memory is freed in short ones: Ctrl-C leaves the rest of that to the workers.
    """
    with target.admin() as admin:
        overview = admin.overview_of(queue)
        waiting = overview.ready + overview.delayed
        if dry_run:
            purged = 0
        else:
            confirm(f"Delete {waiting:,} waiting messages of queue {queue!r}?", yes=yes)
            with Progress(waiting, "messages freed") as progress:
                purged = admin.purge(queue, progress.step)
    if as_json:
        print_json({"queue": queue, "found": waiting, "purged": purged, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"{waiting:,} message(s) of queue {queue!r} would be deleted")
    else:
        click.echo(f"{purged:,} message(s) of queue {queue!r} are deleted")
