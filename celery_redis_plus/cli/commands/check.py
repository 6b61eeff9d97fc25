"""`celery-redis-plus check`: hold a live broker against its invariants, and repair it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_redis_plus.admin.formatting import visible
from celery_redis_plus.cli.asking import complain, json_option
from celery_redis_plus.cli.output import print_json
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.broker.integrity import Account, Violation

CLEAN, VIOLATIONS, COULD_NOT_RUN = 0, 1, 2
MAX_CHECK_BATCH = 500


@click.command(short_help="Check a live broker's invariants, and repair it.")
@with_target
@click.option("--queue", metavar="NAME", help="Check this queue only, without bindings and ids.")
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_CHECK_BATCH),
    default=100,
    show_default=True,
    metavar="N",
    help="Messages that one script call looks at.",
)
@json_option
def command(target: Target, *, queue: str | None, repair: bool, batch: int, as_json: bool) -> int:
    """Check all data against the rules of docs/check.md. One line is printed for each violation.

    It may run while workers and publishers work: what is on its way is no violation. --repair mends what it finds and loses no
    message.

    The exit status is 0 when nothing was found, 1 when something was (repaired or not), 2 when the check could not run. --json
    prints one object a line: the violations, then the account.
    """
    from redis.exceptions import RedisError

    from celery_redis_plus.errors import CeleryRedisPlusError

    try:
        with target.admin() as admin:
            checker = admin.checker(repair=repair, batch=batch)
            with admin.audit.action("repair", queue, in_steps=True) if repair else nullcontext() as action:
                for violation in checker.run(queue):
                    _show(violation, as_json=as_json)
                    if action is not None:
                        action.count += int(violation.repaired)
        if queue is not None and not (checker.account.queues or checker.account.violations):
            complain(f"could not run: there is no queue {queue!r}")
            return COULD_NOT_RUN
        _sum_up(checker.account, as_json=as_json)
    except BrokenPipeError:
        raise
    except (CeleryRedisPlusError, RedisError, OSError) as error:
        complain(f"could not run: {error}")
        return COULD_NOT_RUN
    return VIOLATIONS if checker.account.violations else CLEAN


def _show(violation: Violation, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(violation))
    else:
        click.echo(visible(violation.line()))


def _sum_up(account: Account, *, as_json: bool) -> None:
    if as_json:
        print_json({"account": asdict(account)})
        return
    found = "no violation" if not account.violations else f"{account.violations:,} violation(s), {account.repaired:,} repaired"
    click.echo(f"{account.queues:,} queue(s), {account.messages:,} message(s): {found}")
