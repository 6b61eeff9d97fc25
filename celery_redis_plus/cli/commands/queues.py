"""`celery-redis-plus queues`: what is in the queues, and who takes care of it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from celery_redis_plus.admin.formatting import span, visible
from celery_redis_plus.cli.asking import MAX_LIMIT, Seconds, complain, internal_option, json_option
from celery_redis_plus.cli.outages import Outage
from celery_redis_plus.cli.output import greyed, print_json, print_listing, print_table
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.overview import QueueOverview

HEAD = ("QUEUE", "READY", "DELAYED", "UNACKED", "DEAD", "CONSUMERS", "OLDEST", "FULL", "PAUSED")
RATES = ("IN/S", "OUT/S")
#: A day between two looks.
MAX_INTERVAL_S = 86_400
#: Lines of a terminal that --watch leaves: the head, the line below, and the cursor's.
OTHER_LINES = 3
#: By what queues are sorted, and what comes first.
ORDERS: Final[dict[str, Callable[[Any], Any]]] = {
    "worst": lambda one: (
        -((one.full or 0) >= 1),
        -bool(one.ready and not one.consumers),
        -bool(one.ready and one.paused),
        -(one.oldest_s or 0),
        -one.ready,
        -one.dead,
    ),
    "name": lambda _: 0,
    "ready": lambda one: -one.ready,
    "oldest": lambda one: -(one.oldest_s or 0),
    "dead": lambda one: -one.dead,
    "unacked": lambda one: -one.unacked,
}


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
@click.option(
    "--sort",
    type=click.Choice(list(ORDERS)),
    default="worst",
    show_default=True,
    help="What comes first: full queues, those with messages and no consumer, paused ones, then the oldest messages; or by one "
    "figure, or the name.",
)
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), metavar="N", help="The first N only; --watch: as many as fit.")
@internal_option
@json_option
def command(target: Target, *, queues: tuple[str, ...], watch: bool, interval: float, as_json: bool, **chosen: Any) -> None:
    """Show messages, consumers, the age of the oldest ready message, the use of limits, and pauses of queues. QUEUE is a name or
    a pattern such as 'shop.*'; all queues without one. The command 'queue' shows one with its arguments.

    --json prints one object a queue, one a line.
    """
    view = View(queues, chosen["sort"], chosen["limit"], internal=chosen["internal"])
    with target.admin() as admin:
        if not watch:
            found = view.of(admin)
            print_listing(found, described, HEAD, _row, as_json=as_json)
            if not found:
                complain("there is no such queue here; `doctor` tells of other databases and prefixes")
            elif not as_json and view.told:
                click.echo(view.told)
            return
        with suppress(KeyboardInterrupt):
            _watch(admin, view, interval, as_json=as_json)


class View:
    """The queues that are shown, in their order.

    Attributes:
        limit: how many at most; None: all.
        told: how many there are besides; '' where all are shown.
    """

    def __init__(self, patterns: Sequence[str], order: str, limit: int | None, *, internal: bool) -> None:
        self._patterns = patterns
        self._order = ORDERS[order]
        self._internal = internal
        self.limit = limit
        self.told = ""

    def of(self, admin: BrokerAdmin) -> list[QueueOverview]:
        """Read them. Raises as `BrokerAdmin.overview` does."""
        found = admin.overview(*self._patterns, internal=self._internal)
        # Those of one rank stay in the order of their names.
        shown = sorted(found, key=self._order)[: self.limit]
        self.told = f"{len(shown):,} of {len(found):,} queues" if len(shown) < len(found) else ""
        return shown


def described(one: QueueOverview) -> dict[str, Any]:
    """Return a queue as JSON has it."""
    return {**asdict(one), "full": one.full}


def _row(one: QueueOverview) -> list[Any]:
    paused = None
    if one.paused is not None:
        paused = one.paused if one.paused_until is None else f"{one.paused} (until {one.paused_until:%H:%M:%S} UTC)"
    full = None if one.full is None else f"{one.full:.0%}"
    return [one.queue, one.ready, one.delayed, one.unacked, one.dead, one.consumers, span(one.oldest_s), full, paused]


def _watch(admin: BrokerAdmin, view: View, interval: float, *, as_json: bool) -> None:
    before: dict[str, QueueOverview] = {}
    rows: list[list[Any]] = []
    looked = time.monotonic()
    outage = Outage()
    fits = view.limit is None and not as_json and sys.stdout.isatty()
    while True:
        with outage:
            if fits:
                view.limit = max(1, shutil.get_terminal_size().lines - OTHER_LINES)
            found, now = view.of(admin), time.monotonic()
            rates = {one.queue: _rates(before.get(one.queue), one, now - looked) for one in found}
            rows = [[*_row(one), *rates[one.queue]] for one in found]
            before, looked = {one.queue: one for one in found}, now
            if as_json:
                at = datetime.now(UTC)
                for one in found:
                    in_rate, out_rate = rates[one.queue]
                    print_json({"time": at, **described(one), "in_rate": in_rate, "out_rate": out_rate})
        if not as_json and (sys.stdout.isatty() or not outage.lasts):
            click.clear()
            _show(rows, outage)
            if view.told:
                click.echo(view.told)
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
