"""The jobs of the pipeline, and what they print."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, SparkJobFailed, TablesUnusable
from celery_redis_plus.spark.job_arguments import DEFAULT_READER, EXPIRING, SMALL, add_arguments
from celery_redis_plus.spark.manifest import INGEST_LOCK, RUN_LOCK, folder, folder_id, is_url, locked
from celery_redis_plus.spark.option_parsing import resolve_url
from celery_redis_plus.spark.query_runner import one_line, run_query, stopped_by_signals
from celery_redis_plus.spark.session import check_installed, check_packages, is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from celery_redis_plus.spark.incoming import Stored

#: The environment variable through which a local job hands the URL to Spark's processes, so that it is in no plan or log.
LOCAL_URL = "CELERY_REDIS_PLUS_SPARK_URL"
_JVM_GONE = (
    "Spark's Java process has ended: was it killed, by the kernel for want of memory? Run the job again: it goes on from there; "
    "--conf spark.driver.memory=2g gives it more"
)

Say = Callable[[str], None]


def run(arguments: argparse.Namespace, say: Say = print) -> int:
    """Run the job that the arguments name; return the exit status.

    Raises:
        CeleryRedisPlusError: it could not; the message is one line that says what to do.
    """
    job = {
        "ingest": _ingest,
        "aggregate": _aggregate,
        "run": _run,
        "report": _report,
        "compact": _compact,
        "expire": _expire,
        "publish": _publish,
        "check": _check_tables,
        "replay": _replay,
    }[arguments.job]
    check_packages(spark=False)
    # Before Spark starts, which takes ten seconds.
    settings = dict(_setting(text, "--conf") for text in arguments.conf)
    if arguments.job == "replay" or (arguments.job in {"ingest", "run"} and _ingest_engine(arguments) == "spark"):
        check_installed()
    _check(arguments)
    spark = _Spark(arguments, settings)
    try:
        return job(spark, arguments, say)
    except CeleryRedisPlusError:
        raise
    except Exception as error:
        if spark.begun and (isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"):
            raise SparkJobFailed(_JVM_GONE) from error
        if isinstance(error, OSError):
            # A full disk, or rights that are missing.
            raise TablesUnusable(f"{arguments.root}: {error}") from error
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise SparkJobFailed(one_line(str(error))) from error
    finally:
        spark.stop()


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
    if arguments.job != "report" or not is_url(arguments.root):
        arguments.root = folder(arguments.root)
    if arguments.job not in {"ingest", "run", "replay"}:
        return
    if arguments.url and urlsplit(arguments.url).password and not arguments.master.startswith("local"):
        raise InvalidArgument("--url holds a password, which a cluster would show; use --url-env and spark.executorEnv.NAME")
    from celery_redis_plus.event_log.stream import EventLog

    with EventLog(resolve_url(*_place(arguments)), arguments.prefix) as log:
        if arguments.job == "replay":
            log.ask([("PING",)])
            return
        sound, foreign = log.sound_numberings(log.queues(arguments.queues), strict=not arguments.allow_data_loss)
        if not sound:
            raise next(iter(foreign.values()))


def _session(arguments: argparse.Namespace, settings: dict[str, str]) -> SparkSession:
    from celery_redis_plus.spark.session import session

    level = {} if arguments.verbose else {"spark.log.level": "OFF"}
    name = f"celery-redis-plus {arguments.job}"
    return session(name, master=arguments.master, config=level | settings)


def _ingest(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    with locked(arguments.root, INGEST_LOCK):
        return _ingest_alone(spark, arguments, say)


def _ingest_alone(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    source = _source_options(arguments)
    begun, total = time.monotonic(), 0

    def tell(number: int, stored: Stored) -> None:
        nonlocal total
        total += stored.rows
        if not arguments.child:
            say(f"batch {number}: {stored.rows:,} events; {total:,} in {time.monotonic() - begun:.0f} s")
        for loss in stored.losses:
            say(f"  batch {number} lacks: {loss}" if arguments.child else f"  {loss}")

    with stopped_by_signals() as stop:
        if arguments.child:
            threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
        if _ingest_engine(arguments) == "spark":
            from celery_redis_plus.spark import ingest

            def start() -> StreamingQuery:
                return ingest.start(
                    spark(), arguments.root, source, once=arguments.once, interval_s=arguments.interval, on_batch=tell,
                    holds_lock=True,
                )  # fmt: skip

            run_query(start, stop, say, restarts=not arguments.once)
        else:
            from celery_redis_plus.spark.arrow_ingest import ArrowIngest, Bounds

            most = Bounds(arguments.batch_bytes, arguments.waiting_events, arguments.waiting_bytes)
            ArrowIngest(arguments.root, source, tell, most).run(stop, say, once=arguments.once, interval_s=arguments.interval)
        if stop.is_set() and not arguments.child:
            say("stopped; the next run goes on from here")
    say(f"{total:,} events in {arguments.root}")
    return 0


def _ingest_engine(arguments: argparse.Namespace) -> str:
    """Return what reads: this process on one machine, Spark's tasks on a cluster."""
    if arguments.engine != "auto":
        return str(arguments.engine)
    return "arrow" if arguments.master.startswith("local") else "spark"


def _source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the source `celery_redis`."""
    identity, reader = folder_id(arguments.root), _reader(arguments)
    source: dict[str, Any] = {"prefix": arguments.prefix, "queues": arguments.queues, "readerName": reader}
    if reader:
        source["readerOwner"] = identity
    url, url_env = _place(arguments)
    source |= {"urlEnv": url_env} if url_env else {"url": url}
    if arguments.trim:
        source["trimOnCommit"] = "true"
    if arguments.batch:
        source["maxOffsetsPerTrigger"] = arguments.batch
    if arguments.allow_data_loss:
        source["failOnDataLoss"] = "false"
    return source


def _stop_at_end_of_input(stop: threading.Event) -> None:
    # Not by `sys.stdin`: Python cannot end while a thread waits there.
    while os.read(0, 1):
        """Nothing is said there."""
    stop.set()


def _run(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.health import served
    from celery_redis_plus.spark.ingest_process import IngestProcess
    from celery_redis_plus.spark.lag import Source
    from celery_redis_plus.spark.service import Service

    reader = _reader(arguments)
    url, url_env = _place(arguments)
    words = ["--child", "--root", str(arguments.root), "--reader", reader, "--interval", str(min(10.0, arguments.fresh / 3))]
    words += ["--url-env", url_env] if url_env else ["--url", url]
    for name in ("queues", "prefix", "master", "engine", "batch_bytes", "waiting_events", "waiting_bytes"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    words += ["--batch", str(arguments.batch)] if arguments.batch else []
    words += [f"--{name.replace('_', '-')}" for name in ("trim", "allow_data_loss", "verbose") if getattr(arguments, name)]
    words += [word for setting in arguments.conf for word in ("--conf", setting)]
    command = (sys.executable, "-P", "-m", "celery_redis_plus", "spark", "ingest", *words)
    source = Source(resolve_url(url, url_env), arguments.prefix, arguments.queues, reader)
    service = Service(
        arguments.root,
        source,
        IngestProcess(command, os.environ),
        fresh_s=arguments.fresh,
        say=say,
        kept_s=arguments.keep_versions,
    )
    with (
        locked(arguments.root, RUN_LOCK),
        stopped_by_signals() as stop,
        served(arguments.listen, lambda: service.health) as port,
    ):
        at = f"; http://{arguments.listen.rpartition(':')[0]}:{port}/health" if port else ""
        say(f"events of {arguments.queues} go to {arguments.root}{at}")
        service.run(stop)
    say("stopped; the next run goes on from here")
    return 0


def _reader(arguments: argparse.Namespace) -> str:
    """Return the name of the folder's reader of events."""
    return f"{DEFAULT_READER}-{folder_id(arguments.root)}" if arguments.reader is None else str(arguments.reader)


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
    arguments.output.write_text(report.render(figures, note=note), encoding="utf-8")
    states = ", ".join(
        f"{state} {count:,}" for state, count in zip(figures["states"]["state"], figures["states"]["count"], strict=True)
    )
    say(f"{arguments.output}: {states}")
    if warning := report.warning(figures):
        say(f"  {warning}")
    for found in figures["anomalies"].head(5).itertuples():
        say(f"  {found.kind}: {found.subject} ({found.value:.3g}, usually {found.usual:.3g})")
    if arguments.data:
        say(f"{len(report.save_figures(figures, arguments.data))} files in {arguments.data}")
    if arguments.picture:
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


def _publish(_spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.publication import publish

    done = publish(arguments.root, arguments.to)
    removed = f", {done.removed:,} removed" if done.removed else ""
    say(f"version {done.version} at {arguments.to}: {done.copied:,} files copied ({done.bytes:,} bytes){removed}")
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
        say(
            f"{'WRONG' if finding.wrong else 'ok   '} {finding.check}{subject}: {finding.detail}"
            + (f" ({finding.wrong:,})" if finding.wrong else "")
        )
    return int(any(finding.wrong for finding in found))


def _replay(spark: _Spark, arguments: argparse.Namespace, say: Say) -> int:
    from celery_redis_plus.spark.replay import Destination, replay

    url, url_env = _place(arguments)
    destination = Destination(url=url, url_env=url_env, prefix=arguments.prefix, queue=arguments.to, name=arguments.name)
    done = replay(spark(), arguments.root, arguments.where, destination, dry_run=arguments.dry_run)
    without = f", {done.without_payload:,} without a payload" if done.without_payload else ""
    say(f"{done.selected:,} messages selected{without}, {done.sent:,} sent{' (dry run)' if arguments.dry_run else ''}")
    return 0


def _place(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return where the broker is, for Spark's processes: (URL, '') or ('', name of the environment variable with it)."""
    if arguments.url_env or not arguments.master.startswith("local"):
        return arguments.url or "", arguments.url_env or ""
    os.environ[LOCAL_URL] = arguments.url
    return "", LOCAL_URL


def _setting(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"{option} {text!r} is not allowed; allowed: NAME=VALUE")
    return name, value


def main() -> int:
    """Run a job as `spark-submit` starts it; see `submit.py`."""
    parser = argparse.ArgumentParser(prog="celery-redis-plus spark")
    add_arguments(parser)
    try:
        return run(parser.parse_args(["--help"] if len(sys.argv) < 2 else [*sys.argv[1:], "--master", ""]))
    except CeleryRedisPlusError as error:
        sys.stderr.write(f"celery-redis-plus spark: {error}\n")
        return 1
