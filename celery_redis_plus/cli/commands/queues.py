"""`celery-redis-plus queues`: what is in the queues, and who takes care of it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import span, visible
from celery_redis_plus.cli.asking import Seconds, complain, json_option
from celery_redis_plus.cli.outages import Outage
from celery_redis_plus.cli.output import greyed, print_json, print_listing, print_table
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.overview import QueueOverview

HEAD = ("QUEUE", "READY", "DELAYED", "UNACKED", "DEAD", "CONSUMERS", "OLDEST", "PAUSED")
RATES = ("IN/S", "OUT/S")
#: A day between two looks.
MAX_INTERVAL_S = 86_400


@click.command(short_help="Show what is in the queues.")
@with_target
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--watch", is_flag=True, help="Show it again and again, with rates, until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(0.1, MAX_INTERVAL_S),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@json_option
def command(target: Target, *, queues: tuple[str, ...], watch: bool, interval: float, as_json: bool) -> None:
    """Show what is in the queues: ready, delayed, unacked and dead messages, live consumers, since when the oldest ready message
    is ready, and why a queue is paused. QUEUE is a name or a pattern such as 'shop.*'; all queues without one.

    --json prints one object a queue, one a line.
    """
    with target.admin() as admin:
        if not watch:
            found = admin.overview(*queues)
            print_listing(found, asdict, HEAD, _row, as_json=as_json)
            if not found:
                complain("there is no such queue here; `doctor` tells of other databases and prefixes")
            return
        with suppress(KeyboardInterrupt):
            _watch(admin, queues, interval, as_json=as_json)


def _row(one: QueueOverview) -> list[Any]:
    paused = None
    if one.paused is not None:
        paused = one.paused if one.paused_until is None else f"{one.paused} (until {one.paused_until:%H:%M:%S} UTC)"
    return [one.queue, one.ready, one.delayed, one.unacked, one.dead, one.consumers, span(one.oldest_s), paused]


def _watch(admin: BrokerAdmin, queues: tuple[str, ...], interval: float, *, as_json: bool) -> None:
    before: dict[str, QueueOverview] = {}
    rows: list[list[Any]] = []
    looked = time.monotonic()
    outage = Outage()
    while True:
        with outage:
            found, now = admin.overview(*queues), time.monotonic()
            rates = {one.queue: _rates(before.get(one.queue), one, now - looked) for one in found}
            rows = [[*_row(one), *rates[one.queue]] for one in found]
            before, looked = {one.queue: one for one in found}, now
            if as_json:
                at = datetime.now(UTC)
                for one in found:
                    print_json({"time": at, **asdict(one), **dict(zip(("in_rate", "out_rate"), rates[one.queue], strict=True))})
        if not as_json and (sys.stdout.isatty() or not outage.lasts):
            click.clear()
            _show(rows, outage)
        sys.stdout.flush()
        time.sleep(interval)


def _show(rows: list[list[Any]], outage: Outage) -> None:
    """Print the table; on a terminal without an answer the last one, grey, below the reason."""
    if outage.lasts:
        click.echo(visible(str(outage)))
    with greyed(when=outage.lasts):
        print_table((*HEAD, *RATES), rows)


def _rates(before: QueueOverview | None, one: QueueOverview, seconds: float) -> tuple[float | None, float | None]:
    """Return messages published and delivered a second since the last look; None where there was none."""
    if before is None or seconds <= 0 or one.published < before.published:
        return None, None
    return (one.published - before.published) / seconds, (one.delivered - before.delivered) / seconds
