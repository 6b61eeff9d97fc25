"""`celery-redis-plus audit`: who did what."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import json_option, limit_option
from celery_redis_plus.cli.output import moment, print_listing, time_of
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.audit import AuditEntry

HEAD = ("TIME (UTC)", "ACTOR", "VIA", "FROM", "ACTION", "QUEUE", "COUNT", "OUTCOME", "DETAILS")


@click.command(short_help="Show who did what.")
@with_target
@click.option("--queue", metavar="QUEUE", help="Only what was done to this queue.")
@click.option("--actor", metavar="TEXT", help="Only what somebody did whose name has this text.")
@click.option("--action", "wanted", metavar="NAME", help="Only this action, such as purge or cancel.")
@limit_option
@json_option
def command(
    target: Target, *, queue: str | None, actor: str | None, wanted: str | None, limit: int, as_json: bool
) -> None:  # fmt: skip
    """Show who did what, the last first, by the command line, the web page and Python. The broker keeps the last
    10,000.

    COUNT is how many messages it changed. An action is 'begun' whose process was killed, or that goes on; 'failed' was cut short.
    --json prints one object a line.
    """

    def is_wanted(one: AuditEntry) -> bool:
        return (
            queue in (None, one.queue) and wanted in (None, one.action) and (actor is None or actor.lower() in one.actor.lower())
        )

    with target.admin() as admin:
        found = list(islice(filter(is_wanted, admin.audit.entries()), limit))
    print_listing(found, _described, HEAD, _row, as_json=as_json)


def _described(one: AuditEntry) -> dict[str, Any]:
    shown = asdict(one)
    return {"time": time_of(shown.pop("at_ms")), **shown}


def _row(one: AuditEntry) -> list[Any]:
    details = ", ".join(f"{key} {value}" for key, value in one.details.items())
    return [moment(one.at_ms), one.actor, one.via, one.origin, one.action, one.queue, one.count, one.outcome, details or None]
