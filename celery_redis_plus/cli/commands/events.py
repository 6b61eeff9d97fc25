"""`celery-redis-plus events`: lifecycle events without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.output import print_json, print_table, visible
from celery_redis_plus.cli.target import Target, with_target

F = TypeVar("F", bound=Callable[..., Any])
queues_option: Callable[[F], F] = click.option(
    "--queues", default="*", help="Names or patterns, separated by commas (default: all)."
)


@click.group(short_help="Export lifecycle events, list and drop their readers.")
def command() -> None:
    """Export the lifecycle events that the server has, move finished messages into files, or see and drop the readers for which
    it keeps events. The first two need the extra "parquet".
    """


@command.command()
@with_target
@queues_option
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@click.option("--output", required=True, metavar="FILE", help="'-' is the standard output (jsonl only).")
def export(target: Target, *, queues: str, kind: str, output: str) -> int:
    """Write the events to a file."""
    from celery_redis_plus.event_log.export import export as write

    with target.event_log() as log:
        count = write(log, log.queues(queues), output, kind=kind)
    click.echo(f"{count:,} events in {output}", err=True)
    return DONE


@command.command()
@with_target
@queues_option
@click.option("--to", required=True, metavar="FOLDER", help="Goes on where the last run into it ended.")
@click.option("--reader", default="archive", show_default=True, metavar="NAME", help="One for each folder.")
@json_option
def archive(target: Target, *, queues: str, to: str, reader: str, as_json: bool) -> int:
    """Move finished messages into Parquet files, and out of the streams."""
    from celery_redis_plus.event_log.archiver import move_finished

    with target.event_log() as log:
        moved = move_finished(log, log.queues(queues), Path(to), reader=reader)
    for queue, of in moved.items():
        if as_json:
            print_json({"queue": queue, "finished": of.finished, "open": of.open, "lost": of.lost})
            continue
        lost = f"; {of.lost:,} events were trimmed before" if of.lost else ""
        click.echo(f"{visible(queue)}: {of.finished:,} finished messages moved, {of.open:,} are not finished{lost}")
    return DONE


@command.command()
@with_target
@queues_option
@click.option("--stale-after", type=float, default=24.0, show_default=True, metavar="HOURS")
@json_option
def readers(target: Target, *, queues: str, stale_after: float, as_json: bool) -> int:
    """List the readers, what they still have to read, and which are stale."""
    from celery_redis_plus.event_log.readers import readers as read

    with target.event_log() as log:
        found = read(log, log.queues(queues))
    stale_s = stale_after * 3600
    if as_json:
        for one in found:
            print_json(
                {
                    "reader": one.name, "queue": one.queue, "behind": one.behind, "lost": one.lost, "idle_s": one.idle_s,
                    "stale": one.stale(stale_s),
                }
            )  # fmt: skip
        return DONE
    rows = []
    for one in found:
        hint = "stale: drop it with `events drop-reader`" if one.stale(stale_s) else None
        rows.append([one.name, one.queue, one.behind, one.lost, f"{timedelta(seconds=round(one.idle_s))} ago", hint])
    print_table(("READER", "QUEUE", "BEHIND", "LOST", "LAST COMMIT", "HINT"), rows)
    return DONE


@command.command("drop-reader")
@with_target
@queues_option
@click.argument("reader")
@json_option
def drop_reader(target: Target, *, queues: str, reader: str, as_json: bool) -> int:
    """Forget a reader: events are no longer kept for it."""
    from celery_redis_plus.event_log.readers import drop

    with target.event_log() as log:
        dropped = drop(log, reader, log.queues(queues))
    if as_json:
        print_json({"reader": reader, "dropped": dropped})
    else:
        click.echo(f"dropped for {dropped} queue(s)")
    return DONE


COMMAND = command
