"""`celery-redis-plus groups`: the message groups of a queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_listing
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.groups import GroupState

#: Groups in the table.
MOST_SHOWN = 20
HEAD = ("GROUP", "HELD", "READY OR IN WORK", "CONCURRENCY", "WEIGHT", "PAUSED")


@click.command(short_help="List message groups, or change what holds for one.")
@with_target
@click.argument("queue")
@click.argument("group", required=False)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="So many of its messages may be in work.")
@click.option("--weight", type=click.IntRange(1), metavar="N", help="So many of its messages have their turn together.")
@click.option("--pause", is_flag=True, help="Give none of its messages to consumers.")
@click.option("--default", is_flag=True, help="Let the queue's arguments hold for it again.")
@json_option
def command(
    target: Target, *, queue: str, group: str | None, concurrency: int | None, weight: int | None, pause: bool, default: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """List the message groups of QUEUE, those with the most held messages first, or set what holds for GROUP. The table has the
    first 20 groups, --json all.

    What is set is in force at once and takes the place of what was set before. It stays until --default, also while the group
    has no messages.
    """
    asked = bool(concurrency or weight or pause)
    if (asked or default) and group is None:
        raise click.UsageError("GROUP is missing: which one shall it hold for?")
    if asked and default:
        raise click.UsageError("--default goes with no other rule")
    with target.admin() as admin:
        if group is not None and (asked or default):
            admin.set_group(queue, group, concurrency=concurrency, weight=weight, paused=pause)
        found = [one for one in admin.groups(queue) if group in {None, one.group}]
    print_listing(found if as_json else found[:MOST_SHOWN], _described, HEAD, _row, as_json=as_json)


def _described(one: GroupState) -> dict[str, Any]:
    rule = {"concurrency": None, "weight": None, "paused": False} if one.rule is None else asdict(one.rule)
    return {"group": one.group, "held": one.held, "admitted": one.admitted, **rule}


def _row(one: GroupState) -> list[Any]:
    rule = one.rule
    if rule is None:
        return [one.group, one.held, one.admitted, None, None, None]
    return [one.group, one.held, one.admitted, rule.concurrency, rule.weight, "yes" if rule.paused else None]
