"""`celery-redis-plus delete`: delete queues."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import complain, confirm, dry_run_option, json_option, yes_option
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import print_json
from celery_redis_plus.cli.queue_patterns import chosen_queues, named, queues_argument
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Delete queues, with all that is in them.")
@with_target
@queues_argument
@click.option("--force", is_flag=True, help="Also those that have consumers.")
@dry_run_option
@yes_option
@json_option
def command(target: Target, *, queues: tuple[str, ...], force: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete queues for good, with their messages, dead letters and bindings. QUEUE is a name or a pattern such as 'shop.*'. One
    that has consumers stays, unless --force is given; the exit status is 1 then. Celery workers declare a deleted queue again.
    """
    stay = []
    with target.admin() as admin:
        overviews = [admin.overview_of(queue) for queue in chosen_queues(admin, queues)]
        total = sum(one.ready + one.delayed + one.unacked + one.dead for one in overviews)
        if not dry_run:
            confirm(f"Delete {named([one.queue for one in overviews])} with {total:,} messages for good?", yes=yes)
        for one in overviews:
            used = one.consumers > 0 and not force
            deleted = not used if dry_run else admin.delete_queue(one.queue, if_unused=not force) is not None
            if not deleted:
                stay.append(one.queue)
            if as_json:
                print_json(
                    {"queue": one.queue, "deleted": deleted and not dry_run, "consumers": one.consumers, "dry_run": dry_run}
                )
            elif deleted:
                click.echo(f"queue {one.queue!r} {'would be' if dry_run else 'is'} deleted")
    for queue in stay:
        complain(f"queue {queue!r} has consumers and stays: stop them, or give --force")
    return FAILED if stay else DONE
