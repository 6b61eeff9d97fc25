"""The jobs of the pipeline, and what they print."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, NoEvents, SparkJobFailed, TablesUnusable
from celery_redis_plus.spark.ingest_jobs import broker_of, ingest, ingest_engine, serve
from celery_redis_plus.spark.job_arguments import EXPIRING, SMALL, add_arguments
from celery_redis_plus.spark.option_parsing import has_password, resolve_url
from celery_redis_plus.spark.query_runner import one_line
from celery_redis_plus.spark.roots import NO_JAVA_READER, NO_JAVA_WRITER, folder_of, opened
from celery_redis_plus.spark.session import check_installed, check_packages, is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_GONE = (
    "Spark's Java process has ended: was it killed, by the kernel for want of memory? Run the job again: it goes on from there; "
    "--conf spark.driver.memory=2g gives it more"
)

#: Jobs on what an ingest has stored.
_ON_TABLES = frozenset({"aggregate", "compact", "expire", "forget", "publish", "check", "replay"})

Say = Callable[[str], None]


def run(arguments: argparse.Namespace, say: Say = print) -> int:
    """Run the job that the arguments name; return the exit status.

    Raises:
        CeleryRedisPlusError: it could not; the message is one line that says what to do.
    """
    job = {
        "ingest": ingest,
        "aggregate": _aggregate,
        "run": serve,
        "report": _report,
        "compact": _compact,
        "expire": _expire,
        "forget": _forget,
        "sql": _sql,
        "publish": _publish,
        "delta": _delta,
        "check": _check_tables,
        "replay": _replay,
    }[arguments.job]
    check_packages(spark=False)
    # Before Spark starts, which takes ten seconds.
    settings = dict(_setting(text, "--conf") for text in vars(arguments).get("conf", ()))
    if arguments.job == "replay" or (arguments.job in {"ingest", "run"} and ingest_engine(arguments) == "spark"):
        check_installed()
    _check(arguments)
    spark = _Spark(arguments, settings)

    def said(line: str) -> None:
        with _output("standard output"):
            say(line)

    try:
        return job(spark, arguments, said)
    except (CeleryRedisPlusError, _OutputError, BrokenPipeError):
        raise
    except Exception as error:
        if spark.begun and (isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"):
            raise SparkJobFailed(_JVM_GONE) from error
        if isinstance(error, OSError):
            # A full disk, or rights that are missing.
            raise TablesUnusable(f"{arguments.root}: {str(error).partition(chr(10))[0]}") from error
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise SparkJobFailed(one_line(str(error))) from error
    finally:
        spark.stop()


class _OutputError(OSError):
    """What a job tells cannot be written; the tables are well."""


@contextmanager
def _output(name: str | Path) -> Iterator[None]:
    """Raise errors of an output under its name."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputError(error.errno, error.strerror, str(name)) from error


class _Spark:
    """Starts Spark when a job needs it."""

    def __init__(self, arguments: argparse.Namespace, settings: dict[str, str]) -> None:
        self._arguments = arguments
        self._settings = settings
        self._started: SparkSession | None = None
        #: Whether it has begun to start.
        self.begun = False

    def __call__(self) -> SparkSession:
        if self._started is None:
            self.begun = True
            self._started = _session(self._arguments, self._settings)
        return self._started

    def stop(self) -> None:
        if self._started is not None:
            # It cannot be stopped where its JVM has ended.
            with suppress(Exception):
                self._started.stop()


def _check(arguments: argparse.Namespace) -> None:
    arguments.root = opened(arguments.root)
    if arguments.job == "replay":
        folder_of(arguments.root, NO_JAVA_READER)
    elif arguments.job in {"ingest", "run"} and ingest_engine(arguments) == "spark":
        folder_of(arguments.root, NO_JAVA_WRITER)
    # A wrong path would else be made, and one that `expire` has nothing to remove from is no error.
    if arguments.job in _ON_TABLES and arguments.root.is_empty():
        raise TablesUnusable(f"nothing is in {arguments.root}: correct --root, or run `celery-redis-plus spark ingest` first")
    if arguments.job not in {"ingest", "run", "replay"} or vars(arguments).get("from_archive") is not None:
        return
    if arguments.url and not arguments.master.startswith("local") and has_password(arguments.url):
        raise InvalidArgument("--url holds a password, which a cluster would show; use --url-env and spark.executorEnv.NAME")
    from celery_redis_plus.shards.event_logs import events_at

    # A shard that cannot be reached now does not stop a service.
    partial = arguments.job == "run" or (arguments.job == "ingest" and not arguments.once)
    with events_at(resolve_url(*broker_of(arguments)), arguments.prefix, partial=partial) as log:
        if arguments.job == "replay":
            log.ping()
            return
        sound, foreign = log.sound_numberings(log.queues(arguments.queues), strict=not arguments.allow_data_loss)
        if foreign and not sound:
            raise next(iter(foreign.values()))
        if not sound:
            raise NoEvents(
                f"no queue that has events matches --queues {arguments.queues!r}; `celery-redis-plus queues` lists all"
            )


def _session(arguments: argparse.Namespace, settings: dict[str, str]) -> SparkSession:
    from celery_redis_plus.spark.session import session

    level = {} if arguments.verbose else {"spark.log.level": "OFF"}
    name = f"celery-redis-plus {arguments.job}"
    return session(name, master=arguments.master, config=level | settings)


def _aggregate(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.fold import fold, new_event_count
    from celery_redis_plus.spark.repartition import EVENTS_IN_MEMORY

    begun = time.monotonic()
    if _engine(arguments, lambda: SMALL if arguments.rebuild else new_event_count(arguments.root)) == "spark":
        from celery_redis_plus.spark import tables

        parts = [tables.aggregate(spark(), arguments.root, rebuild=arguments.rebuild, kept_s=arguments.keep_versions)]
    else:
        kept_s = arguments.keep_versions
        parts = [fold(arguments.root, rebuild=arguments.rebuild, most=EVENTS_IN_MEMORY, kept_s=kept_s)]
        while parts[-1].events:
            parts.append(fold(arguments.root, most=EVENTS_IN_MEMORY, kept_s=kept_s))
    dates = sorted({date for part in parts for date in part.dates})
    if not dates:
        say("nothing new")
    else:
        messages, took_s = sum(part.messages for part in parts), time.monotonic() - begun
        say(f"{messages:,} messages of {', '.join(dates)} in {took_s:.1f} s; version {parts[-1].version}")
    return 0


def _engine(arguments: argparse.Namespace, events: Callable[[], int]) -> str:
    """Return what does the work: this process where there is little of it, or no Java."""
    if arguments.engine != "auto":
        return str(arguments.engine)
    return "spark" if events() >= SMALL and is_installed() else "arrow"


def _report(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark import report
    from celery_redis_plus.spark.anomalies import Thresholds
    from celery_redis_plus.spark.snapshot import Snapshot, frame
    from celery_redis_plus.spark.summaries import Period, summaries

    period = Period.parse(arguments.period)
    against = Period.parse(arguments.against) if arguments.against else None
    thresholds = Thresholds.parse(dict(_setting(text, "--threshold") for text in arguments.threshold))
    snapshot = Snapshot(arguments.root)
    figures = summaries(snapshot, period=period, against=against, thresholds=thresholds)
    if (checks := snapshot.checks()) is not None:
        figures["checks"] = frame(checks)
    note = f"Period {arguments.period}." if arguments.period != ".." else "Everything in the tables."
    page = report.render(figures, note=note)
    with _output(arguments.output):
        arguments.output.write_text(page, encoding="utf-8")
    states = ", ".join(
        f"{state} {count:,}" for state, count in zip(figures["states"]["state"], figures["states"]["count"], strict=True)
    )
    say(f"{arguments.output}: {states}")
    if warning := report.warning(figures):
        say(f"  {warning}")
    for found in figures["anomalies"].head(5).itertuples():
        say(f"  {found.kind}: {found.subject} ({found.value:.3g}, usually {found.usual:.3g})")
    if arguments.data:
        with _output(arguments.data):
            saved = report.save_figures(figures, arguments.data)
        say(f"{len(saved)} files in {arguments.data}")
    if arguments.picture:
        with _output(arguments.picture):
            report.draw(figures, arguments.picture)
        say(f"{arguments.picture}")
    return 0


def _compact(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.compaction import compact

    before, after = compact(arguments.root, kept_s=arguments.keep_versions)
    say(f"{before:,} files are {after:,} now" if before else "nothing to compact")
    return 0


def _expire(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.expiry import expire, first_kept

    before = arguments.before or first_kept(arguments.keep_days)
    done = expire(arguments.root, before, kinds=arguments.only or EXPIRING)
    say(f"before {before}: {done.days:,} days of tables and {done.events:,} events removed" if done.days else "nothing to expire")
    return 0


def _forget(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.shards.event_logs import events_at
    from celery_redis_plus.spark.forgetting import forget

    url, url_env = arguments.url or "", arguments.url_env or ""
    with events_at(resolve_url(url, url_env), arguments.prefix) if url or url_env else nullcontext() as log:
        done = forget(arguments.root, arguments.where, log, dry_run=arguments.dry_run)
    how = "would be removed" if arguments.dry_run else "removed"
    say(
        f"{done.messages:,} messages, {done.events:,} events, {done.payloads:,} payloads {how}; {done.files:,} files written anew"
    )
    if done.unfinished:
        say(f"  {done.unfinished:,} of them are not finished: run it again when they are, for events that are still to come")
    if done.broker is None:
        say("  what the broker still has was not looked for: give --url or --url-env")
    for key, count in (done.broker or {}).items():
        say(f"  the broker still has {key} ({count:,})")
    if done.receipt:
        say(f"receipt {arguments.root}/receipts/{done.receipt}.json")
    return 0


def _sql(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.sql_output import as_text
    from celery_redis_plus.spark.views import query

    say(as_text(query(arguments.root, arguments.query), arguments.format))
    return 0


def _publish(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.publication import publish

    done = publish(arguments.root, arguments.to)
    removed = f", {done.removed:,} removed" if done.removed else ""
    say(f"version {done.version} at {arguments.to}: {done.copied:,} files copied ({done.bytes:,} bytes){removed}")
    return 0


def _delta(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark import delta_log

    if arguments.off:
        delta_log.switch_off(arguments.root)
        say(f"{arguments.root} has no logs of Delta Lake any more")
        return 0
    logs = delta_log.switch_on(arguments.root)
    for log in logs:
        say(f"{arguments.root}/{log.table}: version {log.version}, {log.rows:,} rows in {log.files:,} files")
    if not logs:
        say("the first aggregation makes the logs")
    return 0


def _check_tables(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.checks import check, event_count

    inspector = None
    if _engine(arguments, lambda: event_count(arguments.root)) == "spark":
        from celery_redis_plus.spark import tables

        inspector = partial(tables.inspect, spark())
    found = check(arguments.root, inspector, skip=arguments.skip, max_age_s=arguments.max_age)
    for finding in found:
        subject = f" {finding.subject}" if finding.subject else ""
        say(f"{finding.word:5} {finding.check}{subject}: {finding.detail}" + (f" ({finding.wrong:,})" if finding.wrong else ""))
    return int(any(finding.wrong for finding in found))


def _replay(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.replay import Destination, replay

    url, url_env = broker_of(arguments)
    destination = Destination(url=url, url_env=url_env, prefix=arguments.prefix, queue=arguments.to, name=arguments.name)
    done = replay(spark(), arguments.root, arguments.where, destination, dry_run=arguments.dry_run)
    without = f", {done.without_payload:,} without a payload" if done.without_payload else ""
    say(f"{done.selected:,} messages selected{without}, {done.sent:,} sent{' (dry run)' if arguments.dry_run else ''}")
    return 0


def _setting(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"{option} {text!r} is not allowed; allowed: NAME=VALUE")
    return name, value


def main() -> int:
    """Run a job as `spark-submit` starts it; see `submit.py`."""
    parser = argparse.ArgumentParser(prog="celery-redis-plus spark")
    add_arguments(parser)
    arguments = parser.parse_args(sys.argv[1:] or ["--help"])
    arguments.master = ""
    try:
        return run(arguments)
    except CeleryRedisPlusError as error:
        sys.stderr.write(f"celery-redis-plus spark: {error}\n")
        return 1
