"""`celery-redis-plus events`: lifecycle events without Spark."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_redis_plus.admin.formatting import visible
from celery_redis_plus.cli.asking import MAX_LIMIT, json_option, task_option
from celery_redis_plus.cli.outages import Outage
from celery_redis_plus.cli.output import print_json, print_listing, tell, time_of
from celery_redis_plus.cli.target import Target, with_target
from celery_redis_plus.events import TRANSITIONS

if TYPE_CHECKING:
    from celery_redis_plus.event_log.readers import Reader
    from celery_redis_plus.event_log.tail import TailedEvent

#: Seconds between two looks for new events.
TAIL_INTERVAL_S = 0.5
F = TypeVar("F", bound=Callable[..., Any])
queues_option: Callable[[F], F] = click.option(
    "--queues", default="*", help="Names or patterns, separated by commas (default: all)."
)


@click.group(short_help="Follow or export lifecycle events, list and drop their readers.")
def command() -> None:
    """Follow lifecycle events, export those that the server has, move finished messages into files, or see and drop the readers
    for which it keeps events. 'export' and 'archive' need the extra "parquet".
    """


@command.command()
@with_target
@queues_option
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@click.option("--output", required=True, metavar="FILE", help="'-' is the standard output (jsonl only).")
def export(target: Target, *, queues: str, kind: str, output: str) -> None:
    """Write the events to a file. Needs the extra "parquet"."""
    from celery_redis_plus.event_log.export import export as write

    with target.event_logs() as log:
        count = write(log, log.readable(queues), output, kind=kind)
    click.echo(f"{count:,} events in {output}", err=True)


@command.command()
@with_target
@queues_option
@click.option("--to", required=True, metavar="FOLDER", help="Goes on where the last run into it ended.")
@click.option("--reader", default="archive", show_default=True, metavar="NAME", help="One for each folder.")
@click.option("--events", "keep", is_flag=True, help="Keep the events too, for 'spark ingest --from-archive FOLDER'.")
@json_option
def archive(target: Target, *, queues: str, to: str, reader: str, keep: bool, as_json: bool) -> None:
    """Move finished messages into Parquet files, and out of the streams. Needs the extra "parquet"."""
    from celery_redis_plus.event_log.archiver import move_finished

    with target.event_logs() as log:
        moved = move_finished(log, log.readable(queues), Path(to), reader=reader, events=keep)
    for queue, of in moved.items():
        figures = {"finished": of.finished, "open": of.open, "lost": of.lost, "passed_over": of.passed_over}
        lost = f"; {of.lost:,} events were trimmed before" if of.lost else ""
        text = f"{visible(queue)}: {of.finished:,} finished messages moved, {of.open:,} are not finished{lost}"
        tell({"queue": queue, **figures}, text, as_json=as_json)


@command.command()
@with_target
@queues_option
@click.option("--stale-after", type=float, default=24.0, show_default=True, metavar="HOURS")
@json_option
def readers(target: Target, *, queues: str, stale_after: float, as_json: bool) -> None:
    """List the readers, what they still have to read, and which are stale."""
    from celery_redis_plus.event_log.readers import readers as read

    with target.event_logs() as log:
        found = read(log, log.readable(queues))
    stale_s = stale_after * 3600

    def described(one: Reader) -> dict[str, Any]:
        figures = {"behind": one.behind, "lost": one.lost, "idle_s": one.idle_s, "stale": one.stale(stale_s)}
        return {"reader": one.name, "queue": one.queue, **figures}

    def row(one: Reader) -> list[Any]:
        hint = "stale: drop it with `events drop-reader`" if one.stale(stale_s) else None
        return [one.name, one.queue, one.behind, one.lost, f"{timedelta(seconds=round(one.idle_s))} ago", hint]

    print_listing(found, described, ("READER", "QUEUE", "BEHIND", "LOST", "LAST COMMIT", "HINT"), row, as_json=as_json)


@command.command()
@with_target
@queues_option
@task_option
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(TRANSITIONS)), help="Only this event; may be repeated.")
@click.option(
    "--last", type=click.IntRange(0, MAX_LIMIT), default=10, show_default=True, metavar="N", help="Of each queue, before now."
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for further events until Ctrl-C.")
@json_option
def tail(
    target: Target, *, queues: str, task: str | None, kinds: tuple[str, ...], last: int, follow: bool, as_json: bool
) -> None:  # fmt: skip
    """Print the last events, and each new one as it happens, until Ctrl-C. The task is known if its event 'published' is on the
    server, among the 10,000 before.

    --json prints one object an event, one a line.
    """
    from celery_redis_plus.event_log.tail import Tail

    with target.event_logs(partial=True) as log:
        tailing = Tail(log, queues, task=task, kinds=kinds, last=last)
        with suppress(KeyboardInterrupt):
            outage = Outage()
            found: list[TailedEvent] = []
            while True:
                with outage if follow else nullcontext():
                    found = tailing.read()
                if outage.lasts:
                    # The next read opens another connection, and goes on behind the last event.
                    log.close()
                    time.sleep(outage.pause_s)
                    continue
                for one in found:
                    _print_event(one, as_json=as_json)
                sys.stdout.flush()
                if not found and not follow:
                    return
                if not found:
                    time.sleep(TAIL_INTERVAL_S)


def _print_event(one: TailedEvent, *, as_json: bool) -> None:
    event = one.event
    at = time_of(event.ts // 1000)
    if as_json:
        known = {name: value for name, value in asdict(event).items() if value is not None}
        print_json({**known, "ts": at, "queue": one.queue, "task": one.task, "task_id": one.task_id})
        return
    details = (
        event.reason,
        event.error,
        event.worker,
        event.target and f"to {event.target}",
        event.delay and f"{event.delay} ms",
    )
    more = ", ".join(detail for detail in details if detail)
    line = (
        f"{at:%H:%M:%S.%f}"[:-3] + f"  {event.event:13}  {one.queue}  {event.id}  {one.task or '-'}  {one.task_id or '-'}  {more}"
    )
    click.echo(visible(line.rstrip()))


@command.command("drop-reader")
@with_target
@queues_option
@click.argument("reader")
@json_option
def drop_reader(target: Target, *, queues: str, reader: str, as_json: bool) -> None:
    """Forget a reader: events are no longer kept for it."""
    from celery_redis_plus.event_log.readers import drop

    with target.event_logs() as log:
        dropped = drop(log, reader, log.readable(queues))
    tell({"reader": reader, "dropped": dropped}, f"dropped for {dropped} queue(s)", as_json=as_json)
