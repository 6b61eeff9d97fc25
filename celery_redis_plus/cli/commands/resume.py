"""`celery-redis-plus resume`: end a queue's pause."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_json
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="End the pause of a queue.")
@with_target
@click.argument("queue")
@json_option
def command(target: Target, *, queue: str, as_json: bool) -> None:
    """End the pause of a queue: its consumers go on at once."""
    with target.admin() as admin:
        was_paused = admin.resume(queue)
    if as_json:
        print_json({"queue": queue, "was_paused": was_paused})
    else:
        click.echo(f"queue {queue!r} {'goes on' if was_paused else 'was not paused'}")
