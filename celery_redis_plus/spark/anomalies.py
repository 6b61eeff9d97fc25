"""What deserves a look: plain comparisons, each with the figures that it was judged by. Thresholds are arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import pandas as pd

from celery_redis_plus.errors import InvalidArgument

#: The columns of the findings.
_COLUMNS = {
    "kind": "object",
    "subject": "object",
    "value": "float64",
    "usual": "float64",
    "count": "int64",
    "since": "datetime64[ns]",
}
#: A row of these columns.
Finding = tuple[str, str, float, float, int, pd.Timestamp]


@dataclass(frozen=True)
class Thresholds:
    """When a figure is worth telling.

    Attributes:
        wait_factor: a queue's wait in the last quarter of the period against the time before.
        wait_least_s: shorter waits are never told, seconds.
        retry_share: retries per delivery of a task within an hour.
        retry_least: fewer retries are never told.
        failure_factor: a worker's failures per delivery against all workers'.
        failure_sigmas: and how far beyond chance (of the binomial distribution) that must be.
        failure_least: fewer deliveries are never judged.
        poison_attempts: deliveries after which an unfinished or dead message is a candidate.
    """

    wait_factor: float = 2.0
    wait_least_s: float = 1.0
    retry_share: float = 0.3
    retry_least: int = 20
    failure_factor: float = 2.0
    failure_sigmas: float = 3.0
    failure_least: int = 20
    poison_attempts: int = 3

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the thresholds that a command line was given, by their names here.

        Raises:
            InvalidArgument: a name is unknown, or a value is no number.
        """
        known: dict[str, Any] = {threshold.name: type(threshold.default) for threshold in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in given.items():
            if name not in known:
                raise InvalidArgument(f"there is no threshold {name!r}; thresholds: {', '.join(known)}")
            try:
                values[name] = known[name](text)
            except ValueError:
                raise InvalidArgument(f"threshold {name}: {text!r} is not allowed; allowed: a number") from None
        return cls(**values)


def anomalies(tables: Mapping[str, pd.DataFrame], thresholds: Thresholds | None = None) -> pd.DataFrame:
    """Return all findings in `tables` (`messages`, `queues`, `tasks`, `workers`), one row each.

    `value` is what was seen, `usual` what it was compared with, `count` on how many events that rests.
    """
    limits = thresholds or Thresholds()
    found = [
        rising_waits(tables["queues"], limits),
        retry_storms(tables["tasks"], limits),
        failing_workers(tables["workers"], limits),
        poison_candidates(tables["messages"], limits),
    ]
    rows = pd.DataFrame([row for rows in found for row in rows], columns=list(_COLUMNS)).astype(_COLUMNS)
    return rows.sort_values(["kind", "value", "subject"], ascending=[True, False, True], ignore_index=True)


def rising_waits(queues: pd.DataFrame, limits: Thresholds) -> Iterator[Finding]:
    """Queues whose median wait in the last quarter of the time is `wait_factor` times that of the time before."""
    begin, end = queues["minute"].min(), queues["minute"].max()
    waits = queues[queues["wait_p50_s"].notna()]
    last_quarter = waits["minute"] > end - (end - begin) / 4
    recent, earlier = waits[last_quarter], waits[~last_quarter]
    usual = earlier.groupby("queue")["wait_p50_s"].median()
    figures = {"value": ("wait_p50_s", "median"), "count": ("delivered", "sum"), "since": ("minute", "min")}
    for queue, row in recent.groupby("queue").agg(**figures).iterrows():
        value, before = row["value"], usual.get(queue)
        if before is not None and value >= limits.wait_least_s and value >= limits.wait_factor * before:
            yield "wait time rises", str(queue), value, before, row["count"], row["since"]


def retry_storms(tasks: pd.DataFrame, limits: Thresholds) -> Iterator[Finding]:
    """Tasks that were retried more often than `retry_share` of their deliveries within an hour; the worst hour of each."""
    hourly = tasks.groupby(["task", tasks["minute"].dt.floor("h").rename("since")])[["retried", "delivered"]].sum().reset_index()
    hourly["value"] = hourly["retried"] / hourly["delivered"].clip(lower=1)
    stormy = hourly[(hourly["retried"] >= limits.retry_least) & (hourly["value"] >= limits.retry_share)]
    worst = stormy.sort_values(["value", "since"], ascending=[False, True]).drop_duplicates("task")
    for row in worst.itertuples():
        yield "retry storm", row.task, row.value, limits.retry_share, row.retried, row.since


def failing_workers(workers: pd.DataFrame, limits: Thresholds) -> Iterator[Finding]:
    """Workers that fail `failure_factor` times as often as all, by more than chance explains."""
    figures = {"count": ("delivered", "sum"), "failures": ("failed_deliveries", "sum"), "since": ("minute", "min")}
    each = workers.groupby("worker").agg(**figures)
    usual = each["failures"].sum() / max(each["count"].sum(), 1)
    for worker, row in each.iterrows():
        count = int(row["count"])
        value = row["failures"] / max(count, 1)
        if count >= limits.failure_least and value > 0 and value >= limits.failure_factor * usual:
            sigma = math.sqrt(max(0.0, usual * (1 - usual)) / count)
            if value - usual >= limits.failure_sigmas * sigma:
                yield "worker fails often", str(worker), value, usual, count, row["since"]


def poison_candidates(messages: pd.DataFrame, limits: Thresholds) -> Iterator[Finding]:
    """Messages that were delivered `poison_attempts` times or more and are dead, also in another queue, or still not done."""
    # Without a reason, somebody moved it.
    moved = (messages["state"] == "MOVED") & (messages["reason"].isna() | (messages["reason"] == "replaced"))
    done = messages["state"].isin(["COMPLETED", "RETRIED"]) | moved | messages["state"].isna()
    for row in messages[(messages["attempts"] >= limits.poison_attempts) & ~done].itertuples():
        known = row.task_id if isinstance(row.task_id, str) else row.id
        words = [row.task, known, "in", row.queue]
        subject = " ".join(word for word in words if isinstance(word, str))
        yield "poison candidate", subject, row.attempts, 1.0, row.attempts, row.first_delivery
