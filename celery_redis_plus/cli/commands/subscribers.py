"""`celery-redis-plus subscribers`: who gets the broadcasts of fanout exchanges, and how far each one is."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.output import print_json, print_table, span, time_of
from celery_redis_plus.cli.target import Target, with_target

HEAD = ("EXCHANGE", "QUEUE", "STATE", "DURABLE", "LAG", "SINCE", "HEARD", "HOST AND PID")


@click.command(short_help="List the subscribers of fanout exchanges.")
@with_target
@click.argument("exchanges", nargs=-1, metavar="[EXCHANGE]...")
@json_option
def command(target: Target, *, exchanges: tuple[str, ...], as_json: bool) -> int:
    """List the subscribers of fanout exchanges, the one that lags most first: how many broadcasts each has not processed,
    whether it is durable, since when it subscribes, and when it was last heard of. EXCHANGE is a name or a pattern; all
    exchanges without one.

    --json prints one object a subscriber, one a line.
    """
    with target.admin() as admin:
        found = admin.subscribers(*exchanges)
    if as_json:
        for exchange, subscribers in found.items():
            for one in subscribers:
                print_json(
                    {
                        "exchange": exchange, "queue": one.queue, "id": one.id, "state": one.state, "durable": one.durable,
                        "lag": one.lag, "since": time_of(one.since_ms), "last_heard": time_of(one.heard_ms), "host": one.host,
                    }
                )  # fmt: skip
        return DONE
    rows = []
    for exchange, subscribers in found.items():
        for one in subscribers:
            since, heard = (None if ms is None else span(max(0, one.now_ms - ms) / 1000) for ms in (one.since_ms, one.heard_ms))
            rows.append([exchange, one.queue, one.state, "yes" if one.durable else "no", one.lag, since, heard, one.host])
    print_table(HEAD, rows)
    return DONE


COMMAND = command
