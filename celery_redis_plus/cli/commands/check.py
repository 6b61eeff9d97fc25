"""`celery-redis-plus check`: hold a live broker against its invariants, and repair it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus.cli.command import Command
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.broker.integrity import Account, Violation

CLEAN, VIOLATIONS, COULD_NOT_RUN = 0, 1, 2
MAX_CHECK_BATCH = 500

DESCRIPTION = """\
Check that every message stands in exactly one place, that every queue has its
record, that nothing of a lasting queue expires, and that bindings lead
somewhere. One line is printed for each violation.

It may run while workers and publishers work: what is on its way is no
violation. --repair mends what it finds and loses no message.

The exit status is 0 when nothing was found, 1 when something was (repaired or
not), 2 when the check could not run.
"""


def _batch(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_CHECK_BATCH:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; allowed: 1 to {MAX_CHECK_BATCH}")
    return number


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    add_connection_arguments(parser)
    parser.add_argument("--queue", metavar="NAME", help="check this queue only, without bindings and ids")
    parser.add_argument("--repair", action="store_true", help="mend what can be mended")
    parser.add_argument(
        "--batch", type=_batch, default=100, metavar="N", help="messages that one script call looks at, up to 500; default: 100"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line: the violations, then the account")


def _run(arguments: argparse.Namespace) -> int:
    try:
        return _check(arguments)
    except (CeleryRedisPlusError, RedisError, OSError) as error:
        print(f"celery-redis-plus check: could not run: {error}", file=sys.stderr)
        return COULD_NOT_RUN


def _check(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import operator_for

    with operator_for(arguments) as operator:
        checker = operator.checker(repair=arguments.repair, batch=arguments.batch)
        for violation in checker.run(arguments.queue):
            _show(violation, as_json=arguments.json)
    _sum_up(checker.account, as_json=arguments.json)
    return VIOLATIONS if checker.account.violations else CLEAN


def _show(violation: Violation, *, as_json: bool) -> None:
    print(json.dumps(asdict(violation)) if as_json else violation.line(), flush=True)


def _sum_up(account: Account, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"account": asdict(account)}))
        return
    found = "no violation" if not account.violations else f"{account.violations} violation(s), {account.repaired} repaired"
    print(f"{account.queues} queue(s), {account.messages} message(s): {found}")


COMMAND = Command(
    summary="check a live broker's invariants, and repair it",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
