"""`spark run`: ingest, aggregation and compaction in one service, for weeks.

Ingest runs Spark in a process of its own, which is started again when it ends. The tables are kept up to date here, by plain
Arrow.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.spark.checkpoint import position_in
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.fold import fold
from celery_redis_plus.spark.health import Health
from celery_redis_plus.spark.incoming import waiting
from celery_redis_plus.spark.lag import Lag, Source, lag_of
from celery_redis_plus.spark.losses import HARMLESS, noted
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.memory import give_back
from celery_redis_plus.spark.repartition import EVENTS_IN_MEMORY
from celery_redis_plus.spark.roots import opened

if TYPE_CHECKING:
    from pathlib import Path

    from celery_redis_plus.spark.ingest_process import IngestProcess
    from celery_redis_plus.spark.storage import Storage

#: Seconds between two looks at ingest, and at a signal to end.
POLL_S = 0.5
#: Seconds that it may take to end.
END_WITHIN_S = 9.0
#: Seconds between two lines.
LINE_EVERY_S = 60.0
#: Seconds between two compactions.
COMPACT_EVERY_S = 6 * 3600.0


class Service:
    """Keeps a folder of tables up to date.

    Args:
        root: the folder, or the URL.
        source: whose events.
        ingest: stores them.
        fresh_s: seconds between two aggregations.
        say: called with a line a minute, and one on each disturbance.
        kept_s: as of `fold.fold`.
    """

    def __init__(
        self,
        root: str | Path | Storage,
        source: Source,
        ingest: IngestProcess,
        *,
        fresh_s: float,
        say: Callable[[str], None],
        kept_s: float | None = None,
    ) -> None:
        self.storage = opened(root)
        self.health = Health(wanted_s=fresh_s)
        self._source = source
        self._ingest = ingest
        self._fresh_s = fresh_s
        self._kept_s = kept_s
        self._say = say
        #: The tables have all that happened before, in seconds; 0 is not known.
        self._complete_to = 0.0

    def run(self, stop: threading.Event) -> bool:
        """Run until `stop` is set, and for `END_WITHIN_S` behind that at most.

        Returns whether all that was stored is in the tables. If not, a thread of this process goes on with it, as a request to a
        slow store cannot be ended: the caller ends the process, and the next run does it.
        """
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self._run(stop)
            except BaseException as error:  # noqa: BLE001 - it is raised below
                failed.append(error)

        thread = threading.Thread(target=work, name="service", daemon=True)
        thread.start()
        while thread.is_alive() and not stop.wait(POLL_S):
            """Signals come to this thread."""
        deadline = time.monotonic() + END_WITHIN_S
        self._ingest.end()
        thread.join(max(0.0, deadline - time.monotonic()))
        if failed:
            raise failed[0]
        return not thread.is_alive()

    def _run(self, stop: threading.Event) -> None:
        began = time.monotonic()
        aggregation_at, line_at, compaction_at = began, began + LINE_EVERY_S, began + COMPACT_EVERY_S
        # What was missed before the start comes with the first micro-batch, after the first aggregation.
        told, pause_s = 0, self._fresh_s / 3
        try:
            while not stop.is_set():
                if said := self._ingest.keep_up():
                    self._say(said)
                    self.health = replace(self.health, ingest_error=said)
                now = time.monotonic()
                if now >= aggregation_at:
                    # Behind as many events as one takes there may be more: the next one has them.
                    many = self._aggregate(stop) >= EVENTS_IN_MEMORY // 2
                    aggregation_at, pause_s = now + (0.0 if many else pause_s), self._fresh_s
                if now >= line_at:
                    self._say(self.health.line((self.health.events - told) / LINE_EVERY_S))
                    line_at, told = now + LINE_EVERY_S, self.health.events
                if now >= compaction_at:
                    with suppress(CeleryRedisPlusError, OSError):
                        compact(self.storage, kept_s=self._kept_s)
                    compaction_at = now + COMPACT_EVERY_S
                stop.wait(POLL_S)
        finally:
            self._ingest.end()
        self._aggregate(stop)

    def _aggregate(self, stop: threading.Event) -> int:
        """Put what is stored into the tables, look how things are; return how many events it were.

        The folder may be used by somebody else for a while.
        """
        error, events, began = "", 0, time.monotonic()
        try:
            events = fold(self.storage, most=EVENTS_IN_MEMORY, kept_s=self._kept_s).events
        except (CeleryRedisPlusError, OSError) as failed:
            error = str(failed)
            self._say(f"aggregation failed: {error}; it is tried again")
        try:
            self._look(error, events, time.monotonic() - began, ending=stop.is_set())
        except (CeleryRedisPlusError, OSError) as failed:
            # A full disk takes no status either.
            self.health = replace(self.health, error=error or str(failed))
            self._say(f"the state of the tables is unknown: {failed}; it is looked at again")
        give_back()
        return events

    def _look(self, error: str, events: int, fold_s: float, *, ending: bool) -> None:
        manifest = Manifest.read(self.storage)
        lag: Lag | None = None
        # At its end it does not wait for a broker that hangs.
        if not ending:
            with suppress(CeleryRedisPlusError):
                position = position_in(self.storage)
                lag = lag_of(self._source, position.offset(position.stored()) or {})
        unreadable = dict.fromkeys(self.health.unreadable) if lag is None else lag.unreadable
        if new := [queue for queue in unreadable if queue not in self.health.unreadable]:
            self._say(f"the events of {', '.join(map(repr, new))} cannot be read, others are: {unreadable[new[0]]}")
        stored = waiting(self.storage, manifest)
        now = time.time()
        # This machine's clock may have gone back.
        self._complete_to = min(self._complete_to, now)
        if lag is not None and not stored.batches:
            self._complete_to = max(self._complete_to, now - max(lag.seconds.values(), default=0.0))
        # Events are written in their order: what is missing is younger than the newest one. That of a clock that was ahead tells
        # nothing, until its time has come.
        ages = [now - at for at in (manifest.newest_us / 1e6, self._complete_to) if 0 < at <= now]
        losses: Counter[str] = Counter()
        for loss in noted(self.storage, manifest):
            if loss.why not in HARMLESS:
                losses[loss.why] += loss.count
        goes_on = events or (lag is not None and not any(lag.events.values()))
        self.health = replace(
            self.health,
            ingest_error="" if goes_on else self.health.ingest_error,
            ingesting=self._ingest.running,
            starts=self._ingest.starts,
            unreadable=tuple(unreadable),
            lag=None if lag is None else lag.events,
            lag_seconds={} if lag is None else lag.seconds,
            waiting_events=stored.events,
            waiting_bytes=stored.bytes,
            freshness_s=min(ages, default=None),
            events=self.health.events + events,
            fold_s=round(fold_s, 3),
            losses=dict(losses),
            files=len(manifest.referenced()),
            version=manifest.version,
            error=error,
        )
        self.storage.write_json("status.json", self.health.status())
