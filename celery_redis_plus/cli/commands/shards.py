"""`celery-redis-plus shards`: raise the number of shards of a broker."""

from __future__ import annotations

import click

from celery_redis_plus.cli.asking import DURATION, complain, dry_run_option, interrupted, stop_on_interrupt
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.output import Progress
from celery_redis_plus.cli.target import Target, with_target


@click.group(short_help="Raise the number of shards.")
def command() -> None:
    """Change over how many shards the queues of a broker are spread."""


@command.command("raise")
@with_target
@click.argument("number", type=click.IntRange(min=2))
@click.option(
    "--patience", type=DURATION, default="30s", show_default=True, metavar="TIME",
    help="How long a queue waits in its new shard for messages that consumers have in the old one.",
)  # fmt: skip
@dry_run_option
def raise_(target: Target, *, number: int, patience: float, dry_run: bool) -> int:
    """Raise the number of shards to NUMBER, drained or under traffic, and move the queues whose shard is another one then.

    Workers and publishers with several shards connect again with the new number by themselves; those without are refused.
    Messages keep their order; those of a queue are consumed in its new shard when all of them are there. The command ends when no
    consumer has a message of an old shard any more. It may be ended at any moment, and the same line again does the rest.
    """
    if target.shard is not None:
        raise click.UsageError("--shard is for one shard; this command is for all of them")
    with target.shards_raise(number, patience) as raised, stop_on_interrupt() as stopped:
        moves = raised.moving()
        if dry_run:
            for move in moves:
                waiting, unacked = move.left()
                click.echo(
                    f"queue {move.name!r}: shard {move.source.number} -> {move.target.number}, {waiting + unacked:,} message(s)"
                )
            click.echo(f"{len(moves):,} queue(s) would go to other shards")
            return DONE
        with (
            raised.audit.action("raise shards", in_steps=True, shards=number) as action,
            Progress(sum(move.left()[0] for move in moves), "messages") as progress,
        ):
            for count in raised.run(stopped):
                progress.step(count)
                action.count += count
        click.echo(f"{action.count:,} message(s) moved: {raised.before} shards are {raised.shards} now")
        if stopped():
            left = raised.unacked()
            if left:
                complain(f"{left:,} message(s) are in work, and stay in the old shards where they are given back: run it again")
            return interrupted()
    return DONE
