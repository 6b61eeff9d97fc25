"""`celery-redis-plus scheduled`: what is due when, over all queues."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import span
from celery_redis_plus.cli.asking import DURATION, json_option, limit_option, task_option
from celery_redis_plus.cli.output import listed, moment, print_listing
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.listing import ListedMessage

HEAD = ("DUE (UTC)", "IN", "QUEUE", "PRIORITY", "TASK OR ROUTING KEY", "TASK ID", "ID")


@click.command(short_help="List delayed messages of all queues, the next due first.")
@with_target
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@task_option
@click.option("--within", "within_s", type=DURATION, metavar="TIME", help="Only those due within this time, such as 15m, 2h.")
@limit_option
@json_option
def command(
    target: Target, *, queues: tuple[str, ...], task: str | None, within_s: float | None, limit: int, as_json: bool
) -> None:  # fmt: skip
    """List the delayed messages of queues, the next due first. They are tasks with a countdown or an eta, retries, and messages
    with 'x-delay'. QUEUE is a name or a pattern such as 'shop.*'; all queues without one.

    IN is by this host's clock. --json prints one object a line, with headers and properties.
    """
    now_ms = datetime.now(UTC).timestamp() * 1000
    with target.admin() as admin:
        due = admin.scheduled(*queues, task=task)
        if within_s is not None:
            last_ms = now_ms + within_s * 1000
            due = takewhile(lambda one: one.time_ms <= last_ms, due)
        found = list(islice(due, limit))
        total = sum(one.delayed for one in admin.overview(*queues))

    def row(one: ListedMessage) -> list[Any]:
        due_in = span(max(0.0, one.time_ms - now_ms) / 1000)
        return [moment(one.time_ms), due_in, one.queue, one.priority, one.task or one.routing_key, one.task_id, one.tag]

    print_listing(found, listed, HEAD, row, as_json=as_json)
    if not as_json:
        click.echo(f"{len(found):,} of {total:,} delayed messages")
