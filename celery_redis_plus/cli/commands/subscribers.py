"""`celery-redis-plus subscribers`: who gets the broadcasts of fanout exchanges, and how far each one is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import span
from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_listing, time_of
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCounts
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber

HEAD = ("EXCHANGE", "QUEUE", "STATE", "DURABLE", "LAG", "DELIVERED", "REJECTED", "LOST", "SINCE", "HEARD", "HOST AND PID")


@click.command(short_help="List the subscribers of fanout exchanges.")
@with_target
@click.argument("exchanges", nargs=-1, metavar="[EXCHANGE]...")
@json_option
def command(target: Target, *, exchanges: tuple[str, ...], as_json: bool) -> None:
    """List the subscribers of fanout exchanges, the one that lags most first. EXCHANGE is a name or a pattern; all exchanges
    without one.

    LAG is how many broadcasts it has not processed. The others tell whether it is durable, how many were delivered to it,
    rejected by it and lost, since when it subscribes, and when it was last heard of.

    --json prints one object a subscriber, one a line, with all its counters.
    """
    with target.admin() as admin:
        found = [(exchange, one) for exchange, subscribers in admin.subscribers(*exchanges).items() for one in subscribers]
    print_listing(found, _described, HEAD, _row, as_json=as_json)


def _described(found: tuple[str, Subscriber]) -> dict[str, Any]:
    exchange, one = found
    return {
        "exchange": exchange, "queue": one.queue, "id": one.id, "state": one.state, "durable": one.durable, "lag": one.lag,
        "since": time_of(one.since_ms), "last_heard": time_of(one.heard_ms), "host": one.host,
        **asdict(one.counts),
    }  # fmt: skip


def _row(found: tuple[str, Subscriber]) -> list[Any]:
    exchange, one = found
    since, heard = (None if ms is None else span(max(0, one.now_ms - ms) / 1000) for ms in (one.since_ms, one.heard_ms))
    return [exchange, one.queue, one.state, "yes" if one.durable else "no", one.lag, *_shown(one.counts), since, heard, one.host]


def _shown(counts: SubscriberCounts) -> tuple[int, int, int]:
    return counts.delivered, counts.rejected, counts.lost
