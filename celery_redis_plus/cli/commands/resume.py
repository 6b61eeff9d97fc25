"""`celery-redis-plus resume`: end the pause of queues."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import tell
from celery_redis_plus.cli.queue_patterns import chosen_queues, queues_argument
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="End the pause of queues.")
@with_target
@queues_argument
@json_option
def command(target: Target, *, queues: tuple[str, ...], as_json: bool) -> None:
    """End the pause of queues: their consumers go on at once. QUEUE is a name or a pattern such as 'shop.*'."""
    with target.admin() as admin:
        for queue in chosen_queues(admin, queues):
            was_paused = admin.resume(queue)
            text = f"queue {queue!r} {'goes on' if was_paused else 'was not paused'}"
            tell({"queue": queue, "was_paused": was_paused}, text, as_json=as_json)
