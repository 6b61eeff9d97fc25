"""`celery-redis-plus consumers`: who consumes the queues."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import span
from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_listing
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord

HEAD = ("QUEUE", "CONSUMER", "HOST", "PID", "PRIORITY", "STATE", "HELD", "SINCE", "HEARD", "ACTIVE", "RELEASE", "VERSION")


@click.command(short_help="List the consumers of queues.")
@with_target
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@json_option
def command(target: Target, *, queues: tuple[str, ...], as_json: bool) -> None:
    """List the live consumers of queues. QUEUE is a name or a pattern such as 'shop.*'; all queues without one.

    It shows where they run, their priority and state, how many messages they hold, since when they consume, and when they were
    last heard of. ACTIVE is the one that gets messages in a queue with a single active consumer. RELEASE is the app's option
    release, VERSION that of celery-redis-plus.

    --json prints one object a consumer, one a line.
    """
    with target.admin() as admin:
        found = admin.all_consumers(*queues)
    print_listing(found, asdict, HEAD, _row, as_json=as_json)


def _row(one: ConsumerRecord) -> list[Any]:
    now = datetime.now(UTC)
    since, heard = (span(max(0.0, (now - at).total_seconds())) for at in (one.since, one.last_heard))
    active = "yes" if one.active else None
    return [
        one.queue,
        one.id,
        one.host,
        str(one.pid),
        one.priority,
        one.state,
        one.held,
        since,
        heard,
        active,
        one.release or None,
        one.version or None,
    ]
