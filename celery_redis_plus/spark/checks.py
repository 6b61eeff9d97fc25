"""Checks a folder of tables against itself: files, numbers, paths of messages, sums. What is wrong is counted, by check."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from celery_redis_plus.errors import InvalidArgument, TablesUnusable
from celery_redis_plus.spark import delta_log
from celery_redis_plus.spark.arrow_columns import ints
from celery_redis_plus.spark.losses import EXPIRED, FORGOTTEN, MEMORY_FULL, PARTS, RANGES, TRIMMED, noted
from celery_redis_plus.spark.manifest import (
    CHECKS as CHECKS_FILE,
)
from celery_redis_plus.spark.manifest import (
    UNFINISHED,
    Manifest,
    batches,
    event_files,
    new_batches,
)
from celery_redis_plus.spark.message_timelines import MessageTimelines
from celery_redis_plus.spark.repartition import in_portions
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_redis_plus.spark.storage import Storage

#: Name -> what has to hold.
CHECKS = {
    "files": "every file that the tables name is there, with its rows",
    "logs": "the logs of Delta Lake, where there are some, name the files of the tables",
    "numbers": "the events of each queue are numbered without gaps, but for known losses, and each is there once",
    "steps": "each message is published once, and its events are possible in their order, where nothing was lost",
    "sums": "the minutes add up to the messages, and the messages to the events",
    "losses": "no event was trimmed before it was read, or left out as memory was full",
    "age": "the newest event is not older than --max-age",
}
#: Begins what is told of a check that was not made.
NOT_CHECKED = "not checked: "
#: Ends a problem with an event that is the first one of its message.
AFTER_NOTHING = " after nothing"
#: Counts of the table `queues` -> the columns of `messages` that add up to the same.
_SUMS = {"published": "complete", "delivered": "attempts"}
#: Numbers of events that are noted together, a byte each.
_NUMBERS_A_BLOCK = 1 << 20

#: Queue and what is wrong with an event -> how many.
Problems = Counter[tuple[str, str]]
#: Counts the problems of events, by day of publishing.
Inspector = Callable[["Storage", Mapping[str, Sequence[str]]], Iterable[Problems]]


@dataclass(frozen=True)
class Finding:
    """What one check has found about one subject.

    Attributes:
        check: of `CHECKS`.
        subject: a queue, a file, a sum; '' is all of them.
        wrong: how many are wrong; 0 where all is well.
        detail: what was seen.
    """

    check: str
    subject: str
    wrong: int
    detail: str

    @property
    def word(self) -> str:
        """`WRONG`, `ok`, or `-` where nothing was looked at."""
        return "WRONG" if self.wrong else "-" if self.detail.startswith(NOT_CHECKED) else "ok"


def check(
    root: str | Path | Storage, inspector: Inspector | None = None, *, skip: Collection[str] = (), max_age_s: float | None = None
) -> list[Finding]:  # fmt: skip
    """Check the tables; return a finding for each thing that is wrong, and one for each check that holds, or was not made.

    The findings are the table `checks`, which the next report shows.

    Args:
        root: the folder of tables, or their URL.
        inspector: traces messages; by default this process does, with about a million events in memory.
        skip: names of checks that are left out.
        max_age_s: seconds.

    Raises:
        InvalidArgument: there is no such check.
        TablesUnusable: an aggregation or compaction runs, or there are no tables.
    """
    if unknown := set(skip).difference(CHECKS):
        raise InvalidArgument(f"there is no check {min(unknown)!r}; checks: {', '.join(CHECKS)}")
    storage = opened(root)
    with storage.locked():
        found = list(_Checker(storage, inspector or inspect_here, max_age_s).run(skip))
        found += [
            Finding(name, "", 0, promise)
            for name, promise in CHECKS.items()
            if name not in skip and all(finding.check not in {name, "files"} for finding in found)
        ]
        order = list(CHECKS)
        found.sort(key=lambda finding: (not finding.wrong, order.index(finding.check)))
        save(storage, found)
    return found


def event_count(storage: Storage) -> int:
    """Return how many events a check reads."""
    files = event_files(storage, Manifest.read(storage))
    return sum(storage.row_count(file) for names in files.values() for file in names if storage.size(file) is not None)


def save(storage: Storage, findings: list[Finding]) -> None:
    """Replace the table `checks`."""
    schema = arrow({"check": "string", "subject": "string", "wrong": "bigint", "detail": "string", "checked_at": "timestamp"})
    now = time.time_ns() // 1000
    rows = [asdict(finding) | {"checked_at": now} for finding in findings]
    written = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), written)
    storage.write(CHECKS_FILE, written.getvalue().to_pybytes())


class _Checker:
    """The state of a folder at one moment."""

    def __init__(self, storage: Storage, inspector: Inspector, max_age_s: float | None) -> None:
        self.storage = storage
        self.inspector = inspector
        self.max_age_s = max_age_s
        self.manifest = Manifest.read(storage)
        # The events before their losses: a batch that is committed meanwhile explains no gap, and makes none.
        self.current = not new_batches(storage, self.manifest)
        self.dated = event_files(storage, self.manifest)
        self.losses = noted(storage, self.manifest)
        self.files = [file for files in self.dated.values() for file in files]

    def run(self, skip: Collection[str]) -> Iterator[Finding]:
        missing = list(self._files())
        if "files" not in skip:
            yield from missing
        if missing:
            # The others would fail on them.
            return
        if not self.files and not self.manifest.folded:
            raise TablesUnusable(f"{self.storage} has no table 'events' yet: run `celery-redis-plus spark ingest`")
        others = {
            "logs": self._logs,
            "numbers": self._numbers,
            "steps": self._steps,
            "sums": self._sums,
            "losses": self._losses,
            "age": self._age,
        }
        for name, method in others.items():
            if name not in skip:
                yield from method()

    def _files(self) -> Iterator[Finding]:
        named = self.manifest.referenced().difference(self.manifest.superseded)
        missing = {file for file in {*self.files, *named} if self.storage.size(file) is None}
        for file in sorted(missing):
            yield Finding("files", file, 1, "it is named, and not there")
        for batch in batches(self.storage):
            files = [file for of_day in batch.files.values() for file in of_day]
            there = files and all(self.storage.size(file) is not None for file in files)
            if there and (rows := sum(map(self.storage.row_count, files))) != batch.rows:
                yield Finding("files", batch.name, abs(rows - batch.rows), f"{rows:,} rows; {batch.rows:,} were stored")

    def _logs(self) -> Iterator[Finding]:
        for table, count in delta_log.differences(self.storage, self.manifest):
            yield Finding("logs", table, count, "files are in the log or in the tables only, which the next aggregation mends")

    def _numbers(self) -> Iterator[Finding]:
        ranges = [loss for loss in self.losses if loss.why in RANGES]
        for (queue, epoch), numbers in sorted(numbers_of(self.storage, self.files).items()):
            subject = f"{queue} {epoch}"
            if twice := numbers.rows - numbers.distinct:
                yield Finding("numbers", subject, twice, "events are there more than once")
            own = [loss for loss in ranges if (loss.queue, loss.epoch) == (queue, epoch)]
            # What was removed was read before.
            last = max([numbers.last, *(loss.last or 0 for loss in own if loss.why in PARTS)])
            # One at the end has no event behind it yet, and is no gap.
            known = sum(loss.count for loss in own if (loss.last or 0) <= last)
            if (gap := last - numbers.distinct) > known:
                detail = f"of the numbers up to {last:,} are missing, and no loss tells why"
                yield Finding("numbers", subject, gap - known, detail)

    def _steps(self) -> Iterator[Finding]:
        with_losses = {loss.queue for loss in self.losses if loss.why in {TRIMMED, MEMORY_FULL}}
        # What expired or was forgotten is the beginning of a message.
        begun = {loss.queue for loss in self.losses if loss.why in {EXPIRED, FORGOTTEN}}
        found: Problems = Counter()
        for some in self.inspector(self.storage, self.dated):
            found.update(some)
        for (queue, problem), count in sorted(found.items()):
            if queue not in with_losses and not (queue in begun and problem.endswith(AFTER_NOTHING)):
                yield Finding("steps", queue, count, problem)

    def _sums(self) -> Iterator[Finding]:
        why = ""
        if not self.manifest.tables["queues"]:
            why = "there are no minutes yet"
        elif self.manifest.expired_before:
            why = "a message and its minutes expire on days of their own"
        elif any(loss.why == FORGOTTEN for loss in self.losses):
            why = "the minutes have counted the messages that were forgotten"
        if why:
            yield Finding("sums", "", 0, NOT_CHECKED + why)
            return
        minutes = self._totals(["queues"], list(_SUMS))
        messages = self._totals(["messages", UNFINISHED], [*_SUMS.values(), "events"])
        for name, column in _SUMS.items():
            if messages[column] != minutes[name]:
                detail = f"{minutes[name]:,} in the minutes, {messages[column]:,} in the messages"
                yield Finding("sums", name, abs(messages[column] - minutes[name]), detail)
        rows = sum(map(self.storage.row_count, self.files))
        if self.current and rows != messages["events"]:
            yield Finding(
                "sums", "events", abs(rows - messages["events"]), f"{rows:,} events, {messages['events']:,} in the messages"
            )

    def _totals(self, tables: Sequence[str], columns: Sequence[str]) -> dict[str, int]:
        """Return the sums of columns of tables."""
        totals = dict.fromkeys(columns, 0)
        files = [file for table in tables for of_day in self.manifest.tables[table].values() for file in of_day]
        for batch in _batches(self.storage, files, columns):
            for name in columns:
                totals[name] += pc.sum(batch.column(name)).as_py() or 0
        return totals

    def _losses(self) -> Iterator[Finding]:
        lost: Counter[tuple[str, str]] = Counter()
        for loss in self.losses:
            lost[loss.queue, loss.why] += loss.count
        for (queue, why), count in sorted(lost.items()):
            if why in {TRIMMED, MEMORY_FULL}:
                yield Finding("losses", queue, count, f"events: {why}")

    def _age(self) -> Iterator[Finding]:
        if self.max_age_s is None:
            yield Finding("age", "", 0, f"{NOT_CHECKED}without --max-age")
            return
        times = (pc.max(batch.column("ts")).cast(pa.int64()).as_py() or 0 for batch in _batches(self.storage, self.files, ["ts"]))
        newest = max(times, default=0)
        age = time.time() - newest / 1e6
        if age > self.max_age_s:
            yield Finding("age", "", 1, f"the newest event is {age:,.0f} s old")


class Numbers:
    """The numbers of the events of one epoch of a queue: a byte for each, in blocks."""

    def __init__(self) -> None:
        self.rows = self.distinct = self.last = 0
        self._blocks: dict[int, NDArray[np.bool_]] = {}

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Add some numbers."""
        self.rows += len(numbers)
        self.last = max(self.last, int(numbers.max()))
        blocks = numbers // _NUMBERS_A_BLOCK
        for place in np.unique(blocks).tolist():
            block = self._blocks.setdefault(place, np.zeros(_NUMBERS_A_BLOCK, dtype=np.bool_))
            within = np.unique(numbers[blocks == place] - place * _NUMBERS_A_BLOCK)
            self.distinct += int((~block[within]).sum())
            block[within] = True

    def has(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some numbers there are."""
        found: NDArray[np.bool_] = np.zeros(len(numbers), dtype=np.bool_)
        blocks = numbers // _NUMBERS_A_BLOCK
        for place, block in self._blocks.items():
            own = blocks == place
            found[own] = block[numbers[own] - place * _NUMBERS_A_BLOCK]
        return found


def numbers_of(storage: Storage, files: Sequence[str]) -> dict[tuple[str, int], Numbers]:
    """Return the numbers of events by queue and epoch."""
    found: dict[tuple[str, int], Numbers] = {}
    for batch in _batches(storage, files, ["queue", "epoch", "n"]):
        order = [("queue", "ascending"), ("epoch", "ascending")]
        rows = pa.Table.from_batches([batch]).sort_by(order)
        numbers = ints(rows.column("n"))
        # Arrow gives groups in the order of its hash table.
        counted = rows.group_by(["queue", "epoch"]).aggregate([("n", "count")]).sort_by(order)
        begin = 0
        for row in counted.to_pylist():
            end = begin + row["n_count"]
            found.setdefault((row["queue"], row["epoch"]), Numbers()).add(numbers[begin:end])
            begin = end
    return found


def _batches(storage: Storage, files: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of files by portions."""
    if files:
        yield from (batch for batch in storage.dataset(files).to_batches(columns=list(columns)) if batch.num_rows)


def inspect_here(storage: Storage, files: Mapping[str, Sequence[str]]) -> Iterator[Problems]:
    """Count the problems of events in this process."""
    return map(problems, in_portions(storage, files))


def problems(events: pa.Table) -> Problems:
    """Count what is wrong with messages of which `events` has all events."""
    found: Problems = Counter()
    if not events.num_rows:
        return found
    timelines = MessageTimelines(events)
    queues, names = timelines.table.column("queue"), timelines.table.column("event")
    # A new epoch may begin with an older state: a replica that took over had not got the last events of the old one.
    same_epoch = np.diff(ints(timelines.table.column("epoch")), prepend=0) == 0
    for place in np.flatnonzero(timelines.illegal() & (same_epoch | timelines.first)).tolist():
        after = AFTER_NOTHING if timelines.first[place] else f" after {names[place - 1].as_py()}"
        found[queues[place].as_py(), f"{names[place].as_py()}{after}"] += 1
    return found
