"""`celery-redis-plus policy`: change arguments of live queues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli import exit_status
from celery_redis_plus.cli.asking import DURATION, argument_of, complain, json_option
from celery_redis_plus.cli.output import print_listing, tell
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.broker.queues.policies import Policy

HEAD = ("PATTERN", "ARGUMENTS", "PRIORITY", "SINCE", "UNTIL", "REASON")


@click.command(short_help="Change arguments of live queues: rates, limits, timeouts.")
@with_target
@click.argument("pattern", required=False)
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT=VALUE]...")
@click.option("--reason", metavar="TEXT", help="Why; others will want to know.")
@click.option(
    "--for", "for_s", type=DURATION, metavar="TIME", help="End the policy by itself after this time, such as 90s, 15m, 2h."
)
@click.option(
    "--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, metavar="N",
    help="Of several policies that match a queue, the one with the highest applies.",
)  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove the policy with this pattern.")
@json_option
def command(
    target: Target, *, pattern: str | None, arguments: tuple[str, ...], reason: str | None, for_s: float | None, priority: int,
    remove: bool, as_json: bool,
) -> int:  # fmt: skip
    """Set a policy: arguments for all lasting queues that match PATTERN, in place of their own. Without arguments, list the
    policies.

    ARGUMENT=VALUE is an argument that steers queues, such as x-rate-limit=50/m or x-max-length=10000; null takes one away.
    Messages and consumers stay. The policy is in force for queues that are declared later, too.

    The exit status is 1 where a queue that matches keeps its arguments; the reason is on stderr.
    """
    if not arguments and not remove:
        with target.admin() as admin:
            found = [one for one in admin.policies() if pattern in {None, one.pattern}]
        print_listing(found, _described, HEAD, _row, as_json=as_json)
        return exit_status.DONE if found or pattern is None else _missing(pattern)
    if pattern is None or (arguments and remove):
        raise click.UsageError("a policy is set with arguments, or removed with --remove; not both")
    if arguments and not reason:
        raise click.UsageError("--reason is missing: others will want to know why")
    with target.admin() as admin:
        steered = (
            admin.remove_policy(pattern)
            if remove
            else admin.set_policy(pattern, dict(map(argument_of, arguments)), reason or "", priority=priority, for_s=for_s)
        )
    done = "removed: {} of {} queue(s) that match have other arguments" if remove else "in force in {} of {} queue(s) that match"
    return _missing(pattern) if steered is None else _told(steered, done, as_json=as_json)


def _told(steered: dict[str, str | None], done: str, *, as_json: bool) -> int:
    kept = {queue: why for queue, why in steered.items() if why is not None}
    text = done.format(len(steered) - len(kept), len(steered))
    tell({"queues": list(steered), "not_in_force": kept}, text, as_json=as_json)
    for queue, why in kept.items():
        complain(f"queue {queue!r}: {why}")
    return exit_status.FAILED if kept else exit_status.DONE


def _missing(pattern: str) -> int:
    complain(f"there is no policy {pattern!r}")
    return exit_status.FAILED


def _described(one: Policy) -> dict[str, Any]:
    return {
        "pattern": one.pattern, "arguments": dict(one.arguments), "priority": one.priority,
        "since": one.since, "until": one.until, "reason": one.reason,
    }  # fmt: skip


def _row(one: Policy) -> Sequence[Any]:
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in one.arguments.items()}
    arguments = " ".join(f"{name}={value}" for name, value in values.items())
    since, until = (None if at is None else at.isoformat(timespec="seconds") for at in (one.since, one.until))
    return one.pattern, arguments, one.priority, since, until, one.reason
