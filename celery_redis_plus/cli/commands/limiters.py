"""`celery-redis-plus limiters`: the limiters of a broker."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_listing
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.limiters import LimiterState

#: Limiters in the table.
MOST_SHOWN = 20
HEAD = ("LIMITER", "RULE", "FREE", "WAITING", "HELD FOR")


@click.command(short_help="List limiters, hold one, or set its rule.")
@with_target
@click.argument("limiter", required=False)
@click.option("--hold", type=click.FloatRange(0), metavar="SECONDS", help="Let nothing pass for so long; 0 ends that.")
@click.option("--rate", metavar="RULE", help="Have this rule hold, such as '50/s burst=10' or 'concurrency=2'.")
@click.option("--default", is_flag=True, help="Let the rules of its messages hold again.")
@json_option
def command(
    target: Target, *, limiter: str | None, hold: float | None, rate: str | None, default: bool, as_json: bool
) -> None:  # fmt: skip
    """List the limiters that messages have asked for, those with most waiting messages first; or hold LIMITER, or set its rule.
    The table has the first 20, --json all.

    LIMITER is a name, with all its keys, or a name, a colon and a key. What is set is in force at once, and a rule stays until
    --default.
    """
    asked = hold is not None or rate is not None or default
    if asked and limiter is None:
        raise click.UsageError("LIMITER is missing: which one shall it hold for?")
    if default and rate is not None:
        raise click.UsageError("--default goes with no --rate")
    with target.admin() as admin:
        if limiter is not None and (rate is not None or default):
            admin.set_limiter(limiter, rate)
        if limiter is not None and hold is not None:
            admin.hold_limiter(limiter, hold)
        found = [one for one in admin.limiters() if limiter in {None, one.limiter, one.limiter.partition(":")[0]}]
    if asked and not found:
        click.echo(f"no message has asked for limiter {limiter!r} yet; what is set is in force", err=True)
    print_listing(found if as_json else found[:MOST_SHOWN], asdict, HEAD, _row, as_json=as_json)


def _row(one: LimiterState) -> list[Any]:
    rule = one.rule if one.set_rule is None else f"{one.set_rule} (set; its messages say {one.rule})"
    return [one.limiter, rule, f"{one.free:g}", one.waiting, f"{one.held_s:.0f} s" if one.held_s else None]
