"""The pipeline's demo: tasks run while their events go into Parquet; then they are aggregated and reported."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.demo.console import Console
from celery_redis_plus.demo.environment import DemoFailed, Environment
from celery_redis_plus.demo.expectations import Outcome
from celery_redis_plus.demo.main import run_scenarios
from celery_redis_plus.demo.pipeline.app import LEDGER, QUEUE_OF_TASK, QUEUES, delay_of, task_of
from celery_redis_plus.demo.pipeline.verification import Ledger, Reported, is_busy, verify
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.event_log.stream import EventLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Pipeline"
SURVIVOR, VICTIM = "one", "two"
#: The victim is killed when this share of the tasks has ended.
KILL_AFTER_SHARE = 0.4
#: For all tasks, seconds: a laptop needs one minute.
TIMEOUT_S = 1200
INGEST_INTERVAL_S = 2.0
#: Messages between two looks at the victim. Workers may be faster than the publisher, which must not wait for them.
MESSAGES_A_LOOK = 20
#: Records of the ledger among which the victim's last one is.
KILL_LOOK_BACK = 500
IDLE_POLL_S = 0.5


def run(
    *,
    url: str | None = None,
    verbose: bool = False,
    plain: bool = False,
    output: Path,
    tasks: int = 20_000,
    open_report: bool = False,
) -> int:
    """Run it, and return the exit status, as `demo.main.run` does.

    Args:
        url: a server to use; None starts one.
        verbose: show the workers' logs.
        plain: no colours, nothing overwritten.
        output: a folder for tables and report. One of an earlier run is replaced; any other has to be empty.
        tasks: how many are run.
        open_report: show the report in a browser, where there is one.

    Raises:
        CeleryRedisPlusError: Spark or the server cannot be used; the folder holds something else.
    """
    from celery_redis_plus.spark.session import check_installed

    check_installed()
    _make_room(output)
    console = Console(plain=plain)
    pipeline = Pipeline(output.absolute(), tasks)
    app = "celery_redis_plus.demo.pipeline.app"
    environment = Environment(url, console, verbose=verbose, app=app, log_level="CRITICAL")
    status = run_scenarios(environment, console, [pipeline.run_scenario])
    # A browser in the terminal would hide the output.
    has_a_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if open_report and pipeline.report.exists() and has_a_screen:
        webbrowser.open(pipeline.report.as_uri())
    return status


def _make_room(output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        if not (output / "tables").is_dir():
            raise InvalidArgument(f"--output {output} is not allowed: it holds something else; name a new folder")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Pipeline:
    """The scenario.

    Attributes:
        output: the folder for the tables and the report; it stays.
        tasks: how many tasks are published.
    """

    output: Path
    tasks: int = 20_000

    @property
    def report(self) -> Path:
        """The report's file."""
        return self.output / "report.html"

    def run_scenario(self, environment: Environment, console: Console) -> Outcome:
        """Run it."""
        console.scenario(
            TITLE,
            f"Two workers run {self.tasks:,} tasks, some of which fail, are retried, are rejected or wait for their eta; one of "
            "the workers is killed with SIGKILL. Spark streams what the broker writes of every message into Parquet while it "
            "happens, and aggregates it into tables and a report. Each task notes on its own what it does: that is the ledger.",
        )
        from celery_redis_plus.spark.session import session

        console.say("Spark starts")
        settings = {"spark.log.level": "OFF", "spark.local.dir": str(environment.folder), "spark.driver.memory": "1g"}
        spark = session("celery-redis-plus demo", config=settings)
        try:
            began = time.monotonic()
            with self._events_stored(environment, spark) as check:
                for name in (SURVIVOR, VICTIM):
                    environment.start_worker(name, QUEUES)
                self._publish(environment, console)
                self._wait_for_the_work(environment, console, check)
                console.say(f"{self.tasks:,} tasks ended in {time.monotonic() - began:.0f} s; aggregate and report")
            reported = self._aggregate(environment, spark)
        finally:
            spark.stop()
        console.say(f"the report, of {reported.rows:,} events: {self.report}")
        return Outcome(TITLE, verify(Ledger(environment.records(LEDGER)), reported, self.tasks, SURVIVOR))

    @contextmanager
    def _events_stored(self, environment: Environment, spark: SparkSession) -> Iterator[Callable[[], None]]:
        """Store events in the tables meanwhile, and all that are there at the end; yield a look at whether that fails."""
        from celery_redis_plus.spark import ingest
        from celery_redis_plus.spark.query_runner import one_line

        end = threading.Event()

        def store() -> None:
            last = False
            while not last:
                last = end.wait(INGEST_INTERVAL_S)
                ingest.run_once(spark, self.output / "tables", {"url": environment.broker, "readerName": "demo"})

        with ThreadPoolExecutor(1) as executor:
            stored = executor.submit(store)

            def check() -> None:
                if stored.done() and (error := stored.exception()):
                    raise DemoFailed(f"the events cannot be stored: {one_line(str(error))}") from error

            try:
                yield check
            finally:
                end.set()
        check()

    def _publish(self, environment: Environment, console: Console) -> None:
        with console.progress("published", self.tasks) as progress, environment.app.producer_or_acquire() as producer:
            for number in range(self.tasks):
                task = task_of(number)
                environment.app.send_task(
                    task, (number,), queue=QUEUE_OF_TASK[task], countdown=delay_of(number), producer=producer
                )
                if number % MESSAGES_A_LOOK == 0:
                    self._kill_when_due(environment, console)
                    progress(number)
            progress(self.tasks)

    def _wait_for_the_work(self, environment: Environment, console: Console, check: Callable[[], None]) -> None:
        """Wait until no message is left."""
        with console.progress("ended", self.tasks) as progress:

            def idle() -> bool:
                progress(min(environment.count(LEDGER) // 2, self.tasks))
                check()
                self._kill_when_due(environment, console)
                sizes = environment.admin.overviews_of(QUEUES)
                return not any(size.ready + size.delayed + size.unacked for size in sizes)

            environment.wait(idle, TIMEOUT_S, poll_s=IDLE_POLL_S)

    def _kill_when_due(self, environment: Environment, console: Console) -> None:
        if VICTIM in environment.workers and environment.count(LEDGER) >= 2 * self.tasks * KILL_AFTER_SHARE:
            killed = environment.kill_if_busy(VICTIM, lambda: is_busy(environment.records(LEDGER, KILL_LOOK_BACK), VICTIM))
            if killed:
                console.say(f"worker {VICTIM!r} was killed after {environment.count(LEDGER) // 2:,} tasks")

    def _aggregate(self, environment: Environment, spark: SparkSession) -> Reported:
        from celery_redis_plus.spark import report, tables
        from celery_redis_plus.spark.checks import check
        from celery_redis_plus.spark.replay import Destination, replay
        from celery_redis_plus.spark.snapshot import Snapshot
        from celery_redis_plus.spark.summaries import Period, summaries

        root = self.output / "tables"
        tables.aggregate(spark, root)
        events = tables.read(spark, root, "events")
        figures = summaries(Snapshot(root), period=Period())
        self.report.write_text(report.render(figures, note=f"The demo's {self.tasks:,} tasks."), encoding="utf-8")
        report.save_figures(figures, self.output / "figures")
        report.draw(figures, self.output / "report.svg")
        with EventLog(environment.broker, environment.prefix) as log:
            written = sum(numbering.total for numbering in log.numberings(log.queues()).values())
        dry = replay(spark, root, "state = 'DEAD'", Destination(url=environment.broker), dry_run=True)
        return Reported(
            figures,
            repeated={row.id for row in tables.read(spark, root, "messages").where("attempts > 1").select("id").collect()},
            written=written,
            rows=events.count(),
            distinct=events.select("queue", "epoch", "n").distinct().count(),
            replay=dry,
            wrong=[
                f"{found.check} {found.subject}: {found.detail}"
                for found in check(root, partial(tables.inspect, spark))
                if found.wrong
            ],
        )
