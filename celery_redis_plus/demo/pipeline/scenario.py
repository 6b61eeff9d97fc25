"""The one scenario: tasks run while their events go into Parquet; then they are aggregated and reported."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redis_plus.demo.app import broker_prefix
from celery_redis_plus.demo.environment import DemoFailed
from celery_redis_plus.demo.expectations import Outcome
from celery_redis_plus.demo.pipeline.app import LEDGER, QUEUE_OF_TASK, QUEUES, delay_of, task_of
from celery_redis_plus.demo.pipeline.verification import Ledger, Reported, is_busy, verify
from celery_redis_plus.event_log.stream import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment

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
#: A busy machine may start one of Spark's Python workers too late for it; so often in a row, without a batch between.
STREAM_RESTARTS = 10
IDLE_POLL_S = 0.5


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
        with ExitStack() as exits:
            spark = session("celery-redis-plus demo", config=settings)
            exits.callback(spark.stop)
            return self._run(environment, console, spark, exits)

    def _run(self, environment: Environment, console: Console, spark: SparkSession, exits: ExitStack) -> Outcome:
        for name in (SURVIVOR, VICTIM):
            environment.start_worker(name, QUEUES)
        stream = _Stream(lambda: self._stream(environment, spark), console)
        exits.callback(stream.stop)
        begun = time.monotonic()
        self._publish(environment, console, stream)
        self._wait_for_the_work(environment, console, stream)
        worked_s = time.monotonic() - begun
        stream.finish()
        console.say("all tasks have ended, and all events are in Parquet; aggregate and report")
        begun = time.monotonic()
        reported = self._aggregate(environment, spark)
        ledger = Ledger(environment.task_log.read(LEDGER))
        console.table(
            ("task", "messages", "completed", "failed", "dead", "wait p95", "run p95"),
            [
                (
                    row.task,
                    *(f"{count:,}" for count in (row.messages, row.completed, row.failed, row.dead)),
                    f"{row.wait_p95_s:.2f} s",
                    f"{row.run_p95_s * 1000:.1f} ms",
                )
                for row in reported.figures["by_task"].itertuples()
            ],
        )
        console.say(f"the report: {self.report}")
        figures = {
            "tasks": f"{self.tasks:,} in {worked_s:.0f} s, with two workers, Spark and the server on this machine",
            "events": f"{reported.rows:,}; aggregated and reported in {time.monotonic() - begun:.0f} s",
        }
        return Outcome(TITLE, verify(ledger, reported, self.tasks, SURVIVOR), figures)

    def _publish(self, environment: Environment, console: Console, stream: _Stream) -> None:
        with console.progress("published", self.tasks) as progress, environment.app.producer_or_acquire() as producer:
            for number in range(self.tasks):
                task = task_of(number)
                environment.app.send_task(
                    task, (number,), queue=QUEUE_OF_TASK[task], countdown=delay_of(number), producer=producer
                )
                if number % MESSAGES_A_LOOK == 0:
                    self._kill_when_due(environment, console)
                if number % 500 == 499:
                    progress(number + 1)
                    stream.check()
            progress(self.tasks)

    def _stream(self, environment: Environment, spark: SparkSession) -> Any:
        from celery_redis_plus.spark import ingest

        source = {"url": environment.broker, "prefix": broker_prefix(environment.prefix), "readerName": "demo"}
        return ingest.start(spark, self.output / "tables", source, interval_s=INGEST_INTERVAL_S)

    def _wait_for_the_work(self, environment: Environment, console: Console, stream: _Stream) -> None:
        """Wait until no message is left."""
        with console.progress("ended", self.tasks) as progress:

            def idle() -> bool:
                progress(min(environment.task_log.count(LEDGER) // 2, self.tasks))
                stream.check()
                self._kill_when_due(environment, console)
                sizes = [environment.sizes(queue) for queue in QUEUES]
                return not any(size.ready + size.delayed + size.unacked for size in sizes)

            environment.wait(idle, TIMEOUT_S, poll_s=IDLE_POLL_S)

    def _kill_when_due(self, environment: Environment, console: Console) -> None:
        if VICTIM in environment.workers and environment.task_log.count(LEDGER) >= 2 * self.tasks * KILL_AFTER_SHARE:
            killed = environment.kill_if_busy(VICTIM, lambda: is_busy(environment.task_log.read(LEDGER, KILL_LOOK_BACK), VICTIM))
            if killed:
                console.say(f"worker {VICTIM!r} was killed after {environment.task_log.count(LEDGER) // 2:,} tasks")

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
        with EventLog(environment.broker, broker_prefix(environment.prefix)) as log:
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


class _Stream:
    """The query that streams events into the tables: a failure is noticed at once, and what passes by itself outlived.

    Args:
        start: starts it, where the last one stopped.
        console: hears of disturbances.
    """

    def __init__(self, start: Callable[[], StreamingQuery], console: Console) -> None:
        self._start = start
        self._console = console
        self._restarts_left = STREAM_RESTARTS
        self._query = start()

    def check(self) -> None:
        """Start it again where it has ended.

        Raises:
            DemoFailed: it has failed for good.
        """
        from celery_redis_plus.spark.query_runner import one_line, passes

        error = self._query.exception()
        if error is None:
            return
        self._restarts_left = (STREAM_RESTARTS if self._query.lastProgress else self._restarts_left) - 1
        if self._restarts_left < 0 or not passes(str(error)):
            raise DemoFailed(f"the stream of events has ended: {one_line(str(error))}")
        self._console.say(f"the stream of events starts again: {one_line(str(error))}")
        self._query = self._start()

    def finish(self) -> None:
        """Wait until it has read everything, and stop it. Raises as `check`."""
        from pyspark.errors import PySparkException

        while True:
            try:
                self._query.processAllAvailable()
            except PySparkException:
                if self._query.exception() is None:
                    raise
                self.check()
            else:
                return self.stop()

    def stop(self) -> None:
        """Stop it."""
        self._query.stop()
