"""`celery-redis-plus purge`: remove what waits in queues."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import confirm, dry_run_option, json_option, yes_option
from celery_redis_plus.cli.output import Progress, tell
from celery_redis_plus.cli.queue_patterns import chosen_queues, named, queues_argument
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Delete what waits in queues.")
@with_target
@queues_argument
@dry_run_option
@yes_option
@json_option
def command(target: Target, *, queues: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the ready and delayed messages of queues for good. Unacked messages and dead letters stay. QUEUE is a name or a
    pattern such as 'shop.*'.

    The messages leave a queue in one step. Their memory is freed in short ones: Ctrl-C leaves the rest of that to the workers.
    """
    with target.admin() as admin:
        overviews = [admin.overview_of(queue) for queue in chosen_queues(admin, queues)]
        waiting = {one.queue: one.ready + one.delayed for one in overviews}
        total = sum(waiting.values())
        if not dry_run:
            confirm(f"Delete {total:,} waiting messages of {named(list(waiting))}?", yes=yes)
        with Progress(total, "messages freed") as progress:
            for queue, found in waiting.items():
                purged = 0 if dry_run else admin.purge(queue, progress.step)
                count, verb = (found, "would be") if dry_run else (purged, "are")
                text = f"{count:,} message(s) of queue {queue!r} {verb} deleted"
                tell({"queue": queue, "found": found, "purged": purged, "dry_run": dry_run}, text, as_json=as_json)
