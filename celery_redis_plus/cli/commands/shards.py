"""`celery-redis-plus shards`: raise the number of shards of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import DURATION, complain, dry_run_option, interrupted, json_option, stop_on_interrupt
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import Progress, print_listing, tell
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.shards.queue_move import QueueMove

HEAD = ("QUEUE", "SHARD", "NEW SHARD", "WAITING", "UNACKED")


@click.group(short_help="Raise the number of shards.")
def command() -> None:
    """Change over how many shards the queues of a broker are spread."""


@command.command("raise")
@with_target
@click.argument("number", type=click.IntRange(min=2))
@click.option(
    "--patience", type=DURATION, default="30s", show_default=True, metavar="TIME",
    help="How long a queue waits in its new shard for messages in work in the old one.",
)  # fmt: skip
@dry_run_option
@json_option
def raise_(target: Target, *, number: int, patience: float, dry_run: bool, as_json: bool) -> int:
    """Raise the number of shards to NUMBER, under traffic as well, and move the queues whose shard changes.

    Workers and publishers with several shards connect again with the new number by themselves; those without are refused.
    Messages keep their order; those of a queue are consumed in its new shard when all of them are there. The command ends when no
    consumer has a message of an old shard any more. It may be ended at any moment, and the same line again does the rest.
    """
    if target.shard is not None:
        raise click.UsageError("--shard is for one shard; this command is for all of them")
    with target.shards_raise(number, patience) as raised, stop_on_interrupt() as stopped:
        moves = raised.moving()
        if dry_run:
            print_listing(map(_described, moves), lambda one: one, HEAD, lambda one: list(one.values()), as_json=as_json)
            return DONE
        with (
            raised.audit.action("raise shards", in_steps=True, shards=number) as action,
            Progress(sum(move.left()[0] for move in moves), "messages") as progress,
        ):
            for count in raised.run(stopped):
                progress.step(count)
                action.count += count
        unacked = raised.unacked()
        found = {"before": raised.before, "shards": raised.shards, "moved": action.count, "unacked": unacked}
        text = f"{action.count:,} message(s) of {raised.before} shards moved to {raised.shards}"
        tell(found, text, as_json=as_json)
        if stopped():
            complain(f"{unacked:,} message(s) are in work in the old shards; run the same line again")
            return interrupted()
        for exchange, queue, broadcasts in raised.unread:
            complain(
                f"{broadcasts:,} broadcast(s) of exchange {exchange!r}, published while the number was raised, did not reach the "
                f"durable subscriber {queue!r}: publish them again"
            )
        if raised.unread:
            return FAILED
    return DONE


def _described(move: QueueMove) -> dict[str, Any]:
    waiting, unacked = move.left()
    return {
        "queue": move.name, "shard": move.source.number, "new_shard": move.target.number, "waiting": waiting, "unacked": unacked,
    }  # fmt: skip
