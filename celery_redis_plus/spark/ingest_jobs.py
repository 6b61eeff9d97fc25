"""The jobs that read the broker's events: `ingest`, and `run`, which has one as a process of its own."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_redis_plus.errors import CeleryRedisPlusError, NoEvents, ObjectStoreFailed
from celery_redis_plus.shards.event_logs import events_at
from celery_redis_plus.spark.job_arguments import DEFAULT_READER
from celery_redis_plus.spark.known_broker import KnownBroker
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.option_parsing import resolve_url
from celery_redis_plus.spark.query_runner import GrowingPause, run_query, stopped_by_signals
from celery_redis_plus.spark.storage import INGEST_LOCK, RUN_LOCK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from celery_redis_plus.spark.arrow_ingest import ArrowIngest
    from celery_redis_plus.spark.incoming import Stored

#: The environment variable through which a local job hands the URL to Spark's processes, so that it is in no plan or log.
LOCAL_URL = "CELERY_REDIS_PLUS_SPARK_URL"

Say = Callable[[str], None]
#: Called with the number of a micro-batch and what it has.
Tell = Callable[[int, "Stored"], None]


def ingest(spark: Callable[[], SparkSession], arguments: argparse.Namespace, say: Say) -> int:
    """Run the job `ingest`; `spark` starts Spark, `arguments.root` is opened."""
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
        if arguments.from_archive is not None:
            from celery_redis_plus.spark.archive_ingest import store_archive

            store_archive(arguments.root, arguments.from_archive, tell, also_of_others=arguments.allow_data_loss)
        elif ingest_engine(arguments) == "spark":
            _read_by_spark(spark, arguments, tell, stop, say)
        else:
            read_here(arguments, tell, stop, say)
        if stop.is_set() and not arguments.child:
            say("stopped; the next run goes on from here")
    say(f"{total:,} events in {arguments.root}")
    return 0


def _read_by_spark(
    spark: Callable[[], SparkSession], arguments: argparse.Namespace, tell: Tell, stop: threading.Event, say: Say
) -> None:  # fmt: skip
    from celery_redis_plus.spark.ingest import start

    with arguments.root.locked(INGEST_LOCK):
        source = _source_options(arguments)
        url, known = resolve_url(*broker_of(arguments)), KnownBroker(arguments.root, may_change=arguments.allow_data_loss)

        def started() -> StreamingQuery:
            with events_at(url, arguments.prefix, partial=True, on_database=known.check) as log, suppress(NoEvents):
                log.queues(arguments.queues)
            return start(
                spark(), arguments.root, source, once=arguments.once, interval_s=arguments.interval, on_batch=tell,
                holds_lock=True,
            )  # fmt: skip

        run_query(started, stop, say, restarts=not arguments.once)


def read_here(arguments: argparse.Namespace, tell: Tell, stop: threading.Event, say: Say) -> None:
    """Read in this process. Where an object store fails for a while, it begins anew there: what it was told last is not known."""
    from celery_redis_plus.spark.arrow_ingest import ArrowIngest, Bounds

    most = Bounds(arguments.batch_bytes, arguments.waiting_events, arguments.waiting_bytes)
    pause, worked = GrowingPause(), False
    while not stop.is_set():
        began = time.monotonic()
        try:
            with arguments.root.locked(INGEST_LOCK):
                worked = True
                _read_alone(ArrowIngest(arguments.root, _source_options(arguments), tell, most), arguments, stop, say)
        except (ObjectStoreFailed, OSError) as error:
            if arguments.once or not worked or not isinstance(arguments.root, ObjectStore):
                raise
            pause_s = pause.after(time.monotonic() - began)
            say(f"{str(error).partition(chr(10))[0]}; it starts again in {pause_s:.0f} s")
            stop.wait(pause_s)
        else:
            return


def _read_alone(ingest: ArrowIngest, arguments: argparse.Namespace, stop: threading.Event, say: Say) -> None:
    try:
        ingest.run(stop, say, once=arguments.once, interval_s=arguments.interval)
    except CeleryRedisPlusError:
        # Where another one has taken over, that is why events are gone.
        arguments.root.verify(INGEST_LOCK)
        raise


def ingest_engine(arguments: argparse.Namespace) -> str:
    """Return what reads: this process on one machine, Spark's tasks on a cluster."""
    if arguments.engine != "auto":
        return str(arguments.engine)
    if arguments.job == "ingest" and arguments.from_archive is not None:
        return "arrow"
    return "arrow" if arguments.master.startswith("local") else "spark"


def _source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the source `celery_redis`."""
    identity, reader = arguments.root.identity(), _reader(arguments)
    source: dict[str, Any] = {"prefix": arguments.prefix, "queues": arguments.queues, "readerName": reader}
    if reader:
        source["readerOwner"] = identity
    url, url_env = broker_of(arguments)
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


def serve(_spark: Callable[[], SparkSession], arguments: argparse.Namespace, say: Say) -> int:
    """Run the job `run`; `arguments.root` is opened."""
    from celery_redis_plus.spark.health import served
    from celery_redis_plus.spark.ingest_process import IngestProcess
    from celery_redis_plus.spark.lag import Source
    from celery_redis_plus.spark.service import Service

    reader = _reader(arguments)
    url, url_env = broker_of(arguments)
    # What an aggregation puts into the tables is so old at most: a third would make `--fresh 30` 45 s on a busy machine.
    interval_s = min(10.0, arguments.fresh / 6)
    words = ["--child", "--root", str(arguments.root), "--reader", reader, "--interval", str(interval_s)]
    words += ["--url-env", url_env] if url_env else ["--url", url]
    for name in ("queues", "prefix", "master", "engine", "batch_bytes", "waiting_events", "waiting_bytes"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    words += ["--batch", str(arguments.batch)] if arguments.batch else []
    words += [f"--{name.replace('_', '-')}" for name in ("trim", "allow_data_loss", "verbose") if getattr(arguments, name)]
    words += [word for setting in arguments.conf for word in ("--conf", setting)]
    command = (sys.executable, "-P", "-m", "celery_redis_plus", "spark", "ingest", *words)
    source = Source(resolve_url(url, url_env), arguments.prefix, arguments.queues)
    service = Service(
        arguments.root,
        source,
        IngestProcess(command, os.environ),
        fresh_s=arguments.fresh,
        say=say,
        kept_s=arguments.keep_versions,
    )
    with (
        arguments.root.locked(RUN_LOCK),
        stopped_by_signals() as stop,
        served(arguments.listen, lambda: service.health) as port,
    ):
        at = f"; http://{arguments.listen.rpartition(':')[0]}:{port}/health" if port else ""
        say(f"events of {arguments.queues} go to {arguments.root}{at}")
        whole = service.run(stop)
    say(f"stopped{'' if whole else ' amid an aggregation'}; the next run goes on from here")
    if not whole:
        # What a thread waits for cannot be ended, and Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _reader(arguments: argparse.Namespace) -> str:
    """Return the name of the folder's reader of events."""
    return f"{DEFAULT_READER}-{arguments.root.identity()}" if arguments.reader is None else str(arguments.reader)


def broker_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return where the broker is, for Spark's processes: (URL, '') or ('', name of the environment variable with it)."""
    if arguments.url_env or not arguments.master.startswith("local"):
        return arguments.url or "", arguments.url_env or ""
    os.environ[LOCAL_URL] = arguments.url
    return "", LOCAL_URL
