"""Verifies the report's figures against the ledger that the workers wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from celery_redis_plus.demo.expectations import Expectation
from celery_redis_plus.demo.pipeline.app import Fate

if TYPE_CHECKING:
    import pandas as pd

    from celery_redis_plus.demo.records import Record
    from celery_redis_plus.spark.replay import Replayed

#: Fate in the ledger -> state in the report.
STATES = {Fate.SUCCEED: "COMPLETED", Fate.FAIL: "FAILED", Fate.RETRY: "RETRIED", Fate.REJECT: "DEAD"}
#: Fate -> the exception that the report names.
ERRORS = {Fate.FAIL: "ValueError"}


class Ledger:
    """What the workers noted, by message.

    Attributes:
        ended: message -> its last record with a fate; one that was delivered twice has the same fate twice.
        begun: message -> how often it was begun.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.ended: dict[str, Record] = {record["id"]: record for record in records if "fate" in record}
        self.begun = Counter(record["id"] for record in records if "fate" not in record)
        self.records = records

    def states(self) -> Counter[str]:
        """Return how many messages ended in each state."""
        return sum(self.states_of_tasks().values(), Counter())

    def states_of_tasks(self) -> dict[str, Counter[str]]:
        """Return the same by task."""
        found: dict[str, Counter[str]] = {}
        for record in self.ended.values():
            found.setdefault(record["task"], Counter())[STATES[record["fate"]]] += 1
        return found

    def done(self) -> set[int]:
        """Return the numbers of the tasks that came to their last end."""
        return {record["number"] for record in self.ended.values() if record["fate"] != Fate.RETRY}

    def succeeded_at(self, worker: str) -> int:
        """Return how many messages a worker that was never killed has ended well."""
        return sum(record["fate"] == Fate.SUCCEED and record["worker"] == worker for record in self.ended.values())

    def early(self) -> list[int]:
        """Return the tasks that began before their eta."""
        return [
            record["number"]
            for record in self.records
            if record["eta"] and record["at"] < datetime.fromisoformat(record["eta"]).timestamp()
        ]


def is_busy(records: Sequence[Record], worker: str) -> bool:
    """Return whether the last record of a worker is of a task that it has begun and not ended."""
    last = next((record for record in reversed(records) if record["worker"] == worker), None)
    return last is not None and "fate" not in last


@dataclass(frozen=True)
class Reported:
    """What the pipeline tells.

    Attributes:
        figures: of the report.
        repeated: messages that were delivered more than once.
        written: events that the broker has written, as their numbers say.
        rows: events in the table.
        distinct: different ones among them.
        replay: what a replay of the dead letters would do.
        wrong: what a check of the tables has found.
    """

    figures: Mapping[str, pd.DataFrame]
    repeated: set[str]
    written: int
    rows: int
    distinct: int
    replay: Replayed
    wrong: Sequence[str] = ()


def verify(ledger: Ledger, reported: Reported, tasks: int, survivor: str) -> list[Expectation]:
    """Return the expectations; `tasks` were published, and the worker `survivor` was not killed."""
    figures = reported.figures
    states = dict(zip(figures["states"]["state"], figures["states"]["count"].astype(int), strict=True))
    expected = ledger.states()
    workers = figures["workers"].set_index("worker")
    acked = workers["acked"][workers.index.str.startswith(f"{survivor}@")]
    noted = {
        **{f"messages that the report has as {state}": (states.get(state, 0), expected[state]) for state in STATES.values()},
        "failures with ValueError": (_failures(figures["failures"]), expected["FAILED"]),
        "messages with an eta": (figures["lateness"]["messages"].sum(), sum(bool(end["eta"]) for end in ledger.ended.values())),
        f"acked at worker {survivor}": (acked.sum(), ledger.succeeded_at(survivor)),
    }
    return [
        Expectation.equal("tasks that came to their end", len(ledger.done()), tasks),
        Expectation.at_least("messages that the killed worker held, and another one got", int(workers["requeued"].sum()), 1),
        Expectation.equal("events in Parquet", reported.rows, reported.written),
        Expectation.equal("different ones among them", reported.distinct, reported.written),
        *(Expectation.equal(f"{text}; the ledger has", int(found), known) for text, (found, known) in noted.items()),
        Expectation.none("messages in another state", set(states) - set(expected)),
        Expectation.none("tasks whose row of the report differs from the ledger", _differing_tasks(ledger, figures["by_task"])),
        Expectation.none("tasks that began before their eta", ledger.early()),
        Expectation.none(
            "messages that were begun twice and that the tables do not have as delivered twice",
            {message for message, count in ledger.begun.items() if count > 1} - reported.repeated,
        ),
        Expectation.none("things that `spark check` finds wrong in the tables", reported.wrong),
        Expectation.equal("dead letters that a replay would send", _sendable(reported.replay), expected["DEAD"]),
    ]


def _differing_tasks(ledger: Ledger, by_task: pd.DataFrame) -> set[str]:
    columns = by_task[["task", "messages", "completed", "failed", "dead"]]
    reported = {(task, *map(int, counts)) for task, *counts in columns.itertuples(index=False)}
    noted = {
        (task, sum(states.values()), states["COMPLETED"], states["FAILED"], states["DEAD"])
        for task, states in ledger.states_of_tasks().items()
    }
    return {task for task, *_ in reported ^ noted}


def _failures(failures: pd.DataFrame) -> int:
    return int(failures[failures["error"] == ERRORS[Fate.FAIL]]["count"].sum())


def _sendable(replay: Replayed) -> int:
    return replay.selected - replay.without_payload
