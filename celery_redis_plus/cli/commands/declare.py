"""`celery-redis-plus declare`: declare a queue."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import argument_of, json_option
from celery_redis_plus.cli.output import tell
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Declare a queue.")
@with_target
@click.argument("queue")
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT=VALUE]...")
@json_option
def command(target: Target, *, queue: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Declare a lasting queue, with arguments such as x-max-length=10000. The exit status
    is 1 where it exists with other arguments.
    """
    given = dict(map(argument_of, arguments))
    with target.admin() as admin:
        admin.declare_queue(queue, given)
    tell({"queue": queue, "arguments": given}, f"queue {queue!r} is declared", as_json=as_json)
