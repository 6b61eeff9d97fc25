"""The figures of a report, each a small table: what happened in a period, by queue, task and worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark.anomalies import Thresholds, anomalies
from celery_redis_plus.spark.losses import HARMLESS
from celery_redis_plus.spark.minute_aggregates import percentiles
from celery_redis_plus.spark.schema import MOMENT
from celery_redis_plus.spark.seconds import LONGEST, by_second
from celery_redis_plus.spark.snapshot import EVERY_DAY, Snapshot, codes, frame

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import dataset

#: Rows of the lists of single messages.
MAX_LISTED_VALUES = 20

_COUNTED = ("published", "delivered", "acked", "failed", "retried", "expired", "dead")
_COUNTED_OF_WORKERS = ("delivered", "acked", "failed", "retried", "requeued", "dead", "failed_deliveries")
_READ = ("queue", "task", "state", "reason", "attempts", "complete", "wait_s", "run_s", "total_s", "late_s", "eta")
_LISTED = ("task", "queue", "task_id", "id", "state", "attempts", "wait_s", "run_s", "worker", "published_at")
#: Dead letters that went to another queue; `replaced` are others.
_DEAD_ELSEWHERE = (pc.field("state") == "MOVED") & (pc.field("reason") != "replaced")
_BAD = pc.field("state").isin(["FAILED", "DEAD", "RETRIED", "RETRYABLE"]) | _DEAD_ELSEWHERE
_MINUTE = timedelta(minutes=1)
#: The first and the last year of a period: pandas has no times beyond 2262.
YEARS = (1970, 2261)
_BEYOND = pa.scalar(datetime(YEARS[1] + 1, 1, 1, tzinfo=UTC), MOMENT)


@dataclass(frozen=True)
class Period:
    """A stretch of time in UTC; None is an open end. It takes the messages *published* in it and the minutes in it."""

    start: datetime | None = None
    end: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Period:
        """Return the period `FROM..TO`, each a date or a time in ISO 8601, or empty.

        Raises:
            InvalidArgument: it is something else, or empty.
        """
        start, dots, end = text.partition("..")
        try:
            period = cls(_moment(start), _moment(end))
        except (ValueError, OverflowError):
            dots = ""
            period = cls()
        if not dots or (period.start and period.end and period.start >= period.end):
            raise InvalidArgument(
                f"period {text!r} is not allowed; allowed: FROM..TO such as 2026-01-31..2026-02-01T12:00, of the years "
                f"{YEARS[0]} to {YEARS[1]}"
            )
        return period

    @property
    def days(self) -> tuple[str, str]:
        """Its first and its last day."""
        # The end is not in it: that of a day is the midnight after it.
        last = self.end - timedelta(microseconds=1) if self.end else None
        first_day, last_day = (moment.astimezone(UTC).date().isoformat() if moment else "" for moment in (self.start, last))
        return first_day, last_day or EVERY_DAY[1]

    def holds(self, column: str) -> dataset.Expression:
        """Return whether a time is in the period: one that is not known, or is beyond `YEARS`, in none with such an end."""
        of = pc.field(column)
        before_end = of < pa.scalar(self.end, MOMENT) if self.end else of.is_null() | (of < _BEYOND)
        return before_end & (of >= pa.scalar(self.start, MOMENT)) if self.start else before_end

    def touches(self, start: str, end: str) -> dataset.Expression | None:
        """Return whether a stretch of time, between two columns, has a part in the period; null is an open end."""
        conditions = []
        if self.start:
            conditions.append(pc.field(end).is_null() | (pc.field(end) >= pa.scalar(self.start, MOMENT)))
        if self.end:
            conditions.append(pc.field(start).is_null() | (pc.field(start) < pa.scalar(self.end, MOMENT)))
        return _all(conditions)


def summaries(
    snapshot: Snapshot, *, period: Period, against: Period | None = None, thresholds: Thresholds | None = None
) -> dict[str, pd.DataFrame]:
    """Return the report's figures by name. It takes about 60 bytes of memory for each message of the period.

    Args:
        snapshot: the tables.
        period: what is reported.
        against: another period, to compare with.
        thresholds: for the anomalies.
    """
    limits = thresholds or Thresholds()
    messages = _Messages(snapshot, period)
    per_minute = {
        "queues": ("queue", "minute", *_COUNTED, "backlog", "wait_p50_s", "wait_p95_s"),
        "tasks": ("task", "minute", "delivered", "retried"),
        "workers": ("worker", "minute", *_COUNTED_OF_WORKERS),
    }
    chosen = {
        table: frame(snapshot.read(table, columns, period.holds("minute"), period.days)) for table, columns in per_minute.items()
    }
    queues = chosen["queues"]
    often = pc.field("attempts") >= limits.poison_attempts
    repeated = snapshot.read(
        "messages",
        ("task", "task_id", "id", "queue", "state", "reason", "attempts", "first_delivery"),
        _all([often, messages.wanted]),
        messages.days,
    )
    figures = {
        "states": messages.states(),
        "headline": messages.headline("this period"),
        "throughput": throughput(queues),
        "backlog": backlog(snapshot, period, queues),
        "by_queue": messages.latency("queue"),
        "by_task": messages.latency("task"),
        "waits": queues[["queue", "minute", "wait_p50_s", "wait_p95_s"]].sort_values(["minute", "queue"], ignore_index=True),
        **messages.failures(),
        "slowest": messages.largest("run_s", pc.field("run_s").is_valid()),
        "most_repeated": messages.largest("attempts", pc.field("attempts") > 1),
        "workers": _workers(chosen["workers"]),
        "lateness": messages.lateness(),
        "anomalies": anomalies({**chosen, "messages": frame(repeated)}, limits),
        "incomplete": messages.incomplete(),
        "losses": losses(snapshot, period),
    }
    if against is not None:
        others = _Messages(snapshot, against)
        figures["comparison"] = messages.beside(others)
        figures["headline"] = pd.concat([figures["headline"], others.headline("other period")], ignore_index=True)
    figures["period"] = bounds(snapshot, period)
    start, end = figures["period"].loc[0, ["start", "end"]]
    if start < end <= start + LONGEST:
        before = levels_before(snapshot, start)
        seconds = by_second(snapshot, start, end, dict(zip(before["queue"], before["backlog"], strict=True)))
        if _has_all(seconds, queues, start, end):
            shown = seconds[seconds["minute"] >= start]
            figures["throughput_by_second"] = throughput(shown)
            figures["backlog_by_second"] = _joined([seconds[["queue", "minute", "backlog"]], before])
            figures["waits_by_second"] = shown[["queue", "minute", "wait_p50_s", "wait_p95_s"]]
    return figures


def _has_all(seconds: pd.DataFrame, minutes: pd.DataFrame, start: pd.Timestamp, end: pd.Timestamp) -> bool:
    """Return whether all that the minutes count is there by the second: events may be removed and their minutes kept."""
    first, last = start.ceil("min"), end.floor("min")

    def counted(rows: pd.DataFrame) -> list[int]:
        within = (rows["minute"] >= first) & (rows["minute"] < last)
        return list(rows.loc[within, list(_COUNTED)].sum())

    return not seconds.empty and counted(seconds) == counted(minutes)


class _Messages:
    """The messages that were published in a period."""

    def __init__(self, snapshot: Snapshot, period: Period) -> None:
        self.snapshot = snapshot
        self.wanted, self.days = period.holds("published_at"), period.days
        self.rows = snapshot.read("messages", _READ, self.wanted, self.days)
        self.state, self.state_names = codes(self.rows.column("state"))
        reason, reasons = codes(self.rows.column("reason"))
        replaced = reasons.index("replaced") if "replaced" in reasons else -2
        #: Dead letters that went to another queue.
        self.died = self._is("MOVED") & (reason >= 0) & (reason != replaced)
        self.attempts = np.asarray(self.rows.column("attempts").to_numpy(), dtype=np.int64)

    def states(self) -> pd.DataFrame:
        """Return how many there are in each state."""
        return _counts(frame(self.rows.select(["state"])), ["state"])

    def headline(self, name: str) -> pd.DataFrame:
        """Return the figures that one wants to see first, in a row."""
        row: dict[str, Any] = {"period": name, "published": self.rows.num_rows}
        row |= {state.lower(): int(self._is(state).sum()) for state in ("COMPLETED", "RETRIED", "FAILED", "DEAD")}
        everything = np.zeros(self.rows.num_rows, dtype=np.int64)
        for column in ("wait", "run"):
            found = self._percentiles(column, everything, 1)
            row |= {name: found[name][0] for name in (f"{column}_p50_s", f"{column}_p95_s")}
        return pd.DataFrame([row])

    def latency(self, key: str) -> pd.DataFrame:
        """Return number, outcome and percentiles by queue or task."""
        group, names = codes(self.rows.column(key))
        count = len(names)
        known = group >= 0

        def sums(values: NDArray[Any]) -> NDArray[np.int64]:
            return np.bincount(group[known], weights=values[known], minlength=count).astype(np.int64)

        found = {
            key: names,
            "messages": np.bincount(group[known], minlength=count),
            **{state.lower(): sums(self._is(state)) for state in ("COMPLETED", "FAILED", "DEAD")},
            "redeliveries": sums(np.maximum(self.attempts - 1, 0)),
        }
        for column in ("wait", "run", "total"):
            found |= self._percentiles(column, group, count)
        rows = pd.DataFrame(found)
        return rows[rows["messages"] > 0].sort_values(["messages", key], ascending=[False, True], ignore_index=True)

    def lateness(self) -> pd.DataFrame:
        """Return how long after their eta messages were first delivered, by queue."""
        group, names = codes(self.rows.column("queue"))
        timed = self.rows.column("eta").is_valid().to_numpy() & self.rows.column("late_s").is_valid().to_numpy()
        group = np.where(timed, group, -1)
        rows = pd.DataFrame(
            {
                "queue": names,
                "messages": np.bincount(group[group >= 0], minlength=len(names)),
                **self._percentiles("late", group, len(names)),
                "late_max_s": self._percentiles("late", group, len(names), {"max": 1.0})["late_max_s"],
            }
        )
        return rows[rows["messages"] > 0].sort_values("queue", ignore_index=True)

    def incomplete(self) -> pd.DataFrame:
        """Return how many lack their first events, by queue."""
        missing = self.rows.filter(pc.invert(self.rows.column("complete"))).select(["queue"])
        return _counts(frame(missing), ["queue"])

    def failures(self) -> dict[str, pd.DataFrame]:
        """Return failures and retries by task and reason, and dead letters by queue."""
        columns = ("queue", "task", "state", "reason", "last_event", "error")
        wanted = _all([_BAD, self.wanted])
        parts = [pd.DataFrame(columns=[*columns, "count"])]
        # Messages differ from failure to failure; what is before the colon does not.
        for batch in self.snapshot.batches("messages", columns, wanted, self.days):
            kind = pc.replace_substring_regex(batch.column("error"), "(?s): .*$", "")
            found = frame(pa.Table.from_batches([batch]).set_column(columns.index("error"), "error", kind))
            parts.append(_counts(found, list(columns)))
        bad = pd.concat([part for part in parts if len(part)] or parts)
        dead = bad[bad["state"].isin(["DEAD", "MOVED"])]
        why = bad.assign(reason=bad["reason"].fillna(bad["last_event"]))
        return {
            "failures": _counts(why, ["task", "state", "reason", "error"]),
            "dead_letters": _counts(dead, ["queue", "task", "reason"]),
        }

    def largest(self, column: str, which: dataset.Expression) -> pd.DataFrame:
        """Return the messages that have the largest values of a column."""
        order = [(column, "descending"), ("id", "ascending")]
        best = pa.table({})
        for batch in self.snapshot.batches("messages", _LISTED, _all([which, self.wanted]), self.days):
            rows = pa.Table.from_batches([batch])
            rows = rows.take(pc.select_k_unstable(rows, MAX_LISTED_VALUES, order))
            best = rows if not best.num_columns else pa.concat_tables([best, rows])
            best = best.take(pc.select_k_unstable(best, MAX_LISTED_VALUES, order))
        return frame(best.sort_by(order)) if best.num_columns else pd.DataFrame(columns=list(_LISTED))

    def beside(self, others: _Messages) -> pd.DataFrame:
        """Return tasks of two periods side by side: number, share that failed, and 95th percentiles."""
        joined = self._side("").merge(others._side("_before"), on="task", how="outer")
        for name in ("failed_share", "wait_p95_s", "run_p95_s"):
            joined[f"{name}_change"] = joined[name] - joined[f"{name}_before"]
        return joined.sort_values("task", ignore_index=True)

    def _side(self, suffix: str) -> pd.DataFrame:
        rows = self.latency("task")
        rows["failed_share"] = (rows["failed"] + rows["dead"]) / rows["messages"]
        shown = rows[["task", "messages", "failed_share", "wait_p95_s", "run_p95_s"]]
        return shown.rename(columns={name: f"{name}{suffix}" for name in shown.columns if name != "task"})

    def _is(self, state: str) -> NDArray[np.bool_]:
        place = self.state_names.index(state) if state in self.state_names else -2
        found: NDArray[np.bool_] = self.state == place
        return found | self.died if state == "DEAD" else found

    def _percentiles(
        self, name: str, group: NDArray[np.int64], count: int, shares: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        seconds = np.asarray(self.rows.column(f"{name}_s").to_numpy(), dtype=np.float64)
        known = ~np.isnan(seconds) & (group >= 0)
        found = percentiles(name, group[known], seconds[known], count, *([shares] if shares else []))
        return {column: values.to_numpy(zero_copy_only=False) for column, values in found.items()}


def bounds(snapshot: Snapshot, period: Period) -> pd.DataFrame:
    """Return the start and the end of what the charts draw: of the period, without the time of which there are no tables.

    Without an end it is tomorrow at the latest: a server whose clock was years ahead stretches no chart.
    """
    starts, ends = [], []
    latest = period.end or datetime.now(UTC) + timedelta(days=1)
    for day in snapshot.first_and_last_day("queues"):
        for batch in snapshot.batches("queues", ("minute",), days=(day, day)):
            found = pc.min_max(batch.column("minute")).as_py()
            starts.append(found["min"])
            ends.append(found["max"] + _MINUTE)
    start = max([*([min(starts)] if starts else []), *([period.start] if period.start else [])], default=None)
    end = min(max(ends), latest) if ends else period.end
    moments = {name: [_without_zone(moment)] for name, moment in (("start", start), ("end", end))}
    return pd.DataFrame(moments, dtype="datetime64[ns]")


def backlog(snapshot: Snapshot, period: Period, queues: pd.DataFrame) -> pd.DataFrame:
    """Return the backlogs in a period, and what each queue had before it: it stays until the queue's next event."""
    found = queues[["queue", "minute", "backlog"]]
    if period.start:
        found = _joined([found, levels_before(snapshot, _without_zone(period.start))])
    return found.sort_values(["minute", "queue"], ignore_index=True)


def levels_before(snapshot: Snapshot, start: pd.Timestamp) -> pd.DataFrame:
    """Return the backlog of each queue in the minute before another, where it has one.

    It is what the queue has at last, or what it had before its next event. So the days from then on are read, and none before.
    """
    begin = start.floor("min")
    since = Period(begin.to_pydatetime().replace(tzinfo=UTC))
    levels, sought = snapshot.backlogs(), set(snapshot.backlogs())
    for day in snapshot.days("queues", since=begin.date().isoformat()):
        if not sought:
            break
        columns = ("queue", "minute", "backlog", "backlog_change")
        rows = frame(snapshot.read("queues", columns, since.holds("minute"), (day, day)))
        first = rows[rows["queue"].isin(sought)].sort_values("minute").drop_duplicates("queue")
        levels |= dict(zip(first["queue"], (first["backlog"] - first["backlog_change"]).tolist(), strict=True))
        sought -= set(first["queue"])
    found = [(queue, begin - _MINUTE, level) for queue, level in sorted(levels.items()) if level]
    return pd.DataFrame(found, columns=["queue", "minute", "backlog"])


def throughput(queues: pd.DataFrame) -> pd.DataFrame:
    """Return the counts of all queues by the minute, or what `minute` is else."""
    return queues.groupby("minute")[list(_COUNTED)].sum().reset_index()


def losses(snapshot: Snapshot, period: Period) -> pd.DataFrame:
    """Return the losses that touch a period."""
    found = snapshot.losses()
    touching = period.touches("from_at", "to_at")
    found = found.filter(_all([~pc.field("why").isin(list(HARMLESS)), touching]))
    return frame(found).sort_values(["noted_at", "queue", "why", "first"], ignore_index=True)


def _workers(workers: pd.DataFrame) -> pd.DataFrame:
    found = workers.groupby("worker")[list(_COUNTED_OF_WORKERS)].sum().reset_index()
    return found.sort_values(["delivered", "worker"], ascending=[False, True], ignore_index=True)


def _counts(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return how many rows there are of each combination of keys, the most frequent first; rows may have a `count` already."""
    counted = rows.assign(count=rows.get("count", 1))
    found = counted.groupby(list(keys), dropna=False)["count"].sum().reset_index().astype({"count": "int64"})
    return found.sort_values(["count", *keys], ascending=[False, *(True for _ in keys)], ignore_index=True)


def _joined(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return rows one after the other; pandas warns of empty ones, which have no types."""
    given = list(frames)
    return pd.concat([rows for rows in given if len(rows)] or given[:1], ignore_index=True)


def _all(conditions: Sequence[dataset.Expression | None]) -> dataset.Expression | None:
    whole = None
    for condition in conditions:
        if condition is not None:
            whole = condition if whole is None else whole & condition
    return whole


def _without_zone(moment: datetime | None) -> pd.Timestamp:
    return pd.Timestamp(moment).tz_convert(None) if moment else pd.NaT


def _moment(text: str) -> datetime | None:
    if not text.strip():
        return None
    parsed = datetime.fromisoformat(text.strip())
    moment = parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise ValueError(text)
    return moment
