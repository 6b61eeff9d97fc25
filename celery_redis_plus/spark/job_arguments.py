"""The arguments of the jobs of the pipeline."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

#: The name of the reader of a folder; without `--reader` the id of the folder follows.
DEFAULT_READER = "spark-ingest"
#: Fewer new events than this are aggregated without Spark, whose start takes longer.
SMALL = 200_000
#: Events that are stored and not in the tables yet, and their bytes, at which `run` reads no more.
MOST_WAITING_EVENTS, MOST_WAITING_BYTES = 5_000_000, 4 * 1024**3
#: `leftovers.KEPT_S`, without an import of Arrow.
KEPT_VERSIONS_S = 900.0
#: Days that `expire` keeps at most: a hundred years.
MOST_DAYS = 36_500
#: Those of `expiry.EXPIRING`, without an import of Arrow.
EXPIRING = ("events", "messages", "minutes")
#: Those of `checks.CHECKS`, without an import of Spark.
CHECK_NAMES = ("files", "logs", "numbers", "steps", "sums", "losses", "age")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the jobs as sub-commands."""
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB", title="jobs")
    ingest = jobs.add_parser("ingest", help="stream events into the table `events`, where the last run stopped")
    ingest.add_argument(
        "--once", action="store_true", help="read what is there now, and stop; otherwise go on until SIGTERM or Ctrl-C"
    )
    ingest.add_argument(
        "--interval", type=_seconds(0.01), default=10.0, metavar="SECONDS", help="between two micro-batches (default: 10)"
    )
    # It is a part of `run`: it prints no line a batch, and ends with its standard input.
    ingest.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    aggregate = jobs.add_parser("aggregate", help="bring messages, queues, tasks and workers up to date with events")
    aggregate.add_argument("--rebuild", action="store_true", help="rebuild all of them")
    service = jobs.add_parser("run", help="ingest, aggregate and compact in one service, until SIGTERM or Ctrl-C")
    service.add_argument(
        "--fresh", type=_seconds(0.1), default=30.0, metavar="SECONDS", help="between two aggregations (default: 30)"
    )
    service.add_argument("--listen", default="", metavar="HOST:PORT", help="serve /health and Prometheus' /metrics there")
    _add_bounds(ingest, service)
    for job in (ingest, service):
        job.add_argument("--queues", default="*", help="names or patterns, separated by commas (default: all)")
        job.add_argument("--batch", type=_number(1), metavar="N", help="events a micro-batch at most (default: 500000)")
        job.add_argument(
            "--reader",
            help=f"name under which events are kept for this job (default: {DEFAULT_READER}-ID of the folder; '' for none)",
        )
        job.add_argument("--trim", action="store_true", help="remove events once every registered reader has them (trimOnCommit)")
        job.add_argument("--allow-data-loss", action="store_true", help="go on when events were trimmed before they were read")
    report = jobs.add_parser("report", help="write one HTML file about a period")
    _add_report(report)
    compact = jobs.add_parser("compact", help="leave one file, or a few large ones, of each table and day")
    expire, forget = _add_removals(jobs)
    sql = jobs.add_parser("sql", help="print the rows of a query over tables and views, by DuckDB")
    sql.add_argument("query", metavar="SQL", help="such as SELECT * FROM deaths")
    sql.add_argument("--format", choices=("table", "csv", "json"), default="table", help="json: an object a row")
    publish, delta = _add_for_others(jobs)
    check = jobs.add_parser("check", help="check the tables against themselves; exit status 1 where something is wrong")
    check.add_argument("--skip", action="append", default=[], metavar="CHECK", help=f"leave out: {', '.join(CHECK_NAMES)}")
    check.add_argument("--max-age", type=_seconds(0), metavar="SECONDS", help="of the newest event (default: not checked)")
    reads = "what reads events: this process, or Spark's tasks (auto: Spark where --master is a cluster)"
    traces = f"what traces messages: this process, or Spark's tasks (auto: Spark from {SMALL:,} events on, where Java is)"
    for job, what in ((ingest, reads), (service, reads), (aggregate, traces), (check, traces)):
        job.add_argument("--engine", choices=("auto", "arrow", "spark"), default="auto", help=what)
    replay = _add_replay(jobs)
    for job in (aggregate, service, compact):
        told = f"seconds for which replaced files stay for their readers (default: {KEPT_VERSIONS_S:,})"
        job.add_argument("--keep-versions", type=_seconds(0), default=KEPT_VERSIONS_S, metavar="SECONDS", help=told)
    for job in (ingest, service, replay, forget):
        # Without it, `forget` does not look what the broker still has.
        source = job.add_mutually_exclusive_group(required=job is not forget)
        source.add_argument("--url", help="the broker's URL")
        source.add_argument("--url-env", metavar="NAME", help="an environment variable that holds the URL, on every node")
        if job is ingest:
            what = "instead, what `celery-redis-plus events archive --events` has moved into this folder"
            source.add_argument("--from-archive", type=Path, metavar="DIR", help=what)
        job.add_argument("--prefix", default="", help="the application's global_keyprefix")
    for job in (ingest, aggregate, service, report, compact, expire, forget, sql, publish, delta, check, replay):
        job.add_argument(
            "--root", required=True, metavar="DIR", help="the folder of the tables, or a URL such as s3://lake/celery"
        )
    # The others need no Spark.
    for job in (ingest, aggregate, service, check, replay):
        job.add_argument("--master", default="local[2]", help="where Spark runs (default: %(default)s; '' as spark-submit says)")
        job.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting")
        job.add_argument("--verbose", action="store_true", help="show Spark's own log")


def _seconds(least: float) -> Callable[[str], float]:
    """Return what reads a number of seconds from `least` on, and raises ArgumentTypeError for any other text."""

    def read(text: str) -> float:
        with suppress(ValueError):
            # A comparison with NaN fails.
            if least <= (seconds := float(text)) < math.inf:
                return seconds
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed is a number of seconds from {least:g}")

    return read


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number from `least` on, to `most`, and raises ArgumentTypeError for any other text."""
    allowed = f"a whole number from {least}" if most is None else f"{least} to {most:,}"

    def read(text: str) -> int:
        if text.isascii() and text.isdecimal() and least <= int(text) and (most is None or int(text) <= most):
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed is {allowed}")

    return read


def _add_removals(jobs: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Add the jobs that remove what is stored."""
    expire = jobs.add_parser("expire", help="remove old days from the tables")
    span = expire.add_mutually_exclusive_group(required=True)
    span.add_argument("--before", type=date.fromisoformat, metavar="DATE", help="the first day that stays, UTC")
    span.add_argument("--keep-days", type=_number(1, MOST_DAYS), metavar="N", help="how many days stay, today included")
    expire.add_argument("--only", action="append", default=[], choices=EXPIRING, help="expire these alone (default: all of them)")
    forget = jobs.add_parser("forget", help="remove messages for ever, with their events and payloads")
    forget.add_argument("--where", required=True, metavar="SQL", help="which messages, in DuckDB's dialect")
    forget.add_argument("--dry-run", action="store_true", help="count only")
    return expire, forget


def _add_for_others(jobs: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Add the jobs that give the tables to other programs."""
    publish = jobs.add_parser("publish", help="copy the tables to a URL, for readers elsewhere")
    publish.add_argument("--to", required=True, metavar="URL", help="such as s3://lake/celery")
    delta = jobs.add_parser("delta", help="make the tables Delta tables, which all jobs then keep up to date")
    delta.add_argument("--off", action="store_true", help="make them plain again: remove the logs of Delta Lake, and no data")
    return publish, delta


def _add_bounds(ingest: argparse.ArgumentParser, service: argparse.ArgumentParser) -> None:
    """Add what keeps an ingest from running over its disk."""
    for name, most, what in (
        ("--waiting-events", MOST_WAITING_EVENTS, "so many events wait for an aggregation"),
        ("--waiting-bytes", MOST_WAITING_BYTES, "they take so many bytes on the disk"),
    ):
        told = f"read no more while {what} (default: {most:,}; 0 is no bound; not with Spark)"
        service.add_argument(name, type=_number(0), default=most, metavar="N", help=told)
        # `run` hands it on.
        ingest.add_argument(name, type=_number(0), default=0, help=argparse.SUPPRESS)
    for job in (ingest, service):
        job.add_argument(
            "--batch-bytes",
            type=_number(0),
            default=0,
            metavar="N",
            help="bytes of a micro-batch's files, about (default: no bound; not with Spark)",
        )


def _add_report(report: argparse.ArgumentParser) -> None:
    """Add what a report is about, and where it goes."""
    report.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: %(default)s")
    report.add_argument("--period", default="..", metavar="FROM..TO", help="dates or times in UTC (default: everything)")
    report.add_argument("--against", metavar="FROM..TO", help="another period to compare with")
    report.add_argument("--data", type=Path, metavar="DIR", help="write the figures there too, as Parquet and CSV")
    report.add_argument("--picture", type=Path, metavar="FILE", help="draw the charts into one picture too (.svg, .png)")
    report.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="when a figure is an anomaly, such as retry_share=0.5",
    )


def _add_replay(jobs: Any) -> argparse.ArgumentParser:
    """Add the job that sends messages again."""
    replay: argparse.ArgumentParser = jobs.add_parser("replay", help="send messages again, with their archived payloads")
    replay.add_argument("--where", default="state = 'DEAD'", metavar="SQL", help="which messages (default: %(default)s)")
    replay.add_argument("--to", default="", metavar="QUEUE", help="send them there instead of to their own queues")
    replay.add_argument(
        "--name", default="replay", help="a queue gets each message once under a name, for seven days (default: %(default)s)"
    )
    replay.add_argument("--dry-run", action="store_true", help="count only")
    return replay
