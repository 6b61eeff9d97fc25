"""`celery-redis-plus events`: lifecycle events without Spark."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.cli.command import Command

if TYPE_CHECKING:
    from celery_redis_plus.event_log.stream import EventLog

DESCRIPTION = """\
Export the lifecycle events that the server has, move finished messages into files, or
see and drop the readers for which it keeps events. The first two need the extra "parquet".
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from celery_redis_plus.cli.connecting import add_connection_arguments

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
    export = actions.add_parser("export", help="write the events to a file")
    export.add_argument("--format", choices=("parquet", "jsonl"), default="parquet")
    export.add_argument("--output", required=True, metavar="FILE", help="'-' is the standard output (jsonl only)")
    archive = actions.add_parser("archive", help="move finished messages into Parquet files, and out of the streams")
    archive.add_argument("--to", required=True, metavar="FOLDER", help="goes on where the last run into it ended")
    archive.add_argument("--reader", default="archive", metavar="NAME", help="one for each folder (default: archive)")
    readers = actions.add_parser("readers", help="list the readers, what they still have to read, and which are stale")
    readers.add_argument("--stale-after", type=float, default=24.0, metavar="HOURS")
    drop = actions.add_parser("drop-reader", help="forget a reader: events are no longer kept for it")
    drop.add_argument("reader", metavar="NAME")
    for action in (export, archive, readers, drop):
        add_connection_arguments(action)
        action.add_argument("--queues", default="*", help="names or patterns, separated by commas (default: all)")


def _run(arguments: argparse.Namespace) -> int:
    from celery_redis_plus.cli.connecting import url_of
    from celery_redis_plus.event_log.stream import EventLog

    with EventLog(url_of(arguments), arguments.prefix) as log:
        return {"export": _export, "archive": _archive, "readers": _readers, "drop-reader": _drop}[arguments.action](
            log, arguments
        )


def _export(log: EventLog, arguments: argparse.Namespace) -> int:
    from celery_redis_plus.event_log.export import export

    count = export(log, log.queues(arguments.queues), arguments.output, kind=arguments.format)
    print(f"{count:,} events in {arguments.output}", file=sys.stderr)
    return 0


def _archive(log: EventLog, arguments: argparse.Namespace) -> int:
    from celery_redis_plus.event_log.archiver import move_finished

    moved = move_finished(log, log.queues(arguments.queues), Path(arguments.to), reader=arguments.reader)
    for queue, of in moved.items():
        lost = f"; {of.lost:,} events were trimmed before" if of.lost else ""
        print(f"{queue}: {of.finished:,} finished messages moved, {of.open:,} are not finished{lost}")
    return 0


def _readers(log: EventLog, arguments: argparse.Namespace) -> int:
    from celery_redis_plus.event_log.readers import readers

    found = readers(log, log.queues(arguments.queues))
    print(f"{'READER':<24} {'QUEUE':<24} {'BEHIND':>12} {'LOST':>8}  LAST COMMIT")
    for reader in found:
        state = "  stale: drop it with `events drop-reader`" if reader.stale(arguments.stale_after * 3600) else ""
        ago = timedelta(seconds=round(reader.idle_s))
        print(f"{reader.name:<24} {reader.queue:<24} {reader.behind:>12,} {reader.lost:>8,}  {ago} ago{state}")
    return 0


def _drop(log: EventLog, arguments: argparse.Namespace) -> int:
    from celery_redis_plus.event_log.readers import drop

    print(f"dropped for {drop(log, arguments.reader, log.queues(arguments.queues))} queue(s)")
    return 0


COMMAND = Command(
    summary="export lifecycle events, list and drop their readers",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
