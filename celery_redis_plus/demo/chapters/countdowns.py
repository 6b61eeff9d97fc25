"""Twenty tasks with countdowns of 0.5 to 5 seconds: how late does each start?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import COUNTDOWNS
from celery_redis_plus.demo.claims import Claim, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.account import Account
    from celery_redis_plus.demo.journal import Record
    from celery_redis_plus.demo.stage import Stage

TITLE = "Countdowns"
TASKS = 20
FIRST_S, LAST_S = 0.5, 5.0
#: Generous: another program may hold the machine's cores for that long.
LATENESS_LIMIT_MS = 500
#: Pairs of countdown and lateness in a line of the table.
PAIRS = 4


def play(stage: Stage, account: Account) -> Outcome:
    """Publish the tasks in a mixed order, and compare each start with its time."""
    account.chapter(
        TITLE,
        f"{TASKS} tasks are to start {FIRST_S} to {LAST_S} seconds after they are published. Until then Redis holds them, not "
        "the worker. Each start is compared with the time that was asked for.",
    )
    countdowns = {number: FIRST_S + (LAST_S - FIRST_S) * number / (TASKS - 1) for number in range(TASKS)}
    for number in mixed(TASKS):
        stage.app.send_task(COUNTDOWNS, (number,), queue=COUNTDOWNS, countdown=countdowns[number])
    sizes = stage.sizes(COUNTDOWNS)
    account.say(f"in Redis now: {sizes.delayed} delayed, {sizes.ready} ready, {sizes.unacked} at a worker")
    with account.progress("started", TASKS) as progress:
        stage.wait_for_records(COUNTDOWNS, TASKS, LAST_S + 10, progress)

    records = stage.journal.read(COUNTDOWNS)
    lateness = lateness_ms(records, stage.clock_offset_s)
    account.table(("after s", "late ms") * PAIRS, rows(countdowns, lateness))
    figures = {}
    if lateness:
        late = lateness.values()
        figures["lateness of countdowns"] = f"median {median(late):.1f} ms, longest {max(late):.1f} ms"
    return Outcome(TITLE, judge(records, lateness), figures)


def judge(records: Sequence[Record], lateness: Mapping[int, float]) -> list[Claim]:
    """Return the claims about the records of the starts."""
    runs = Counter(record["number"] for record in records)
    return [
        Claim.equal("tasks executed exactly once", sum(runs[number] == 1 for number in range(TASKS)), TASKS),
        Claim.none("tasks that started early", [number for number, late in lateness.items() if late < 0]),
        Claim.at_most("longest lateness", max(lateness.values(), default=float("inf")), LATENESS_LIMIT_MS, "ms"),
    ]


def lateness_ms(records: Sequence[Record], clock_offset_s: float = 0.0) -> dict[int, float]:
    """Return how late each task started, in ms, by the server's clock: the one that decides when a task is due."""
    return {record["number"]: (record["at"] + clock_offset_s - record["due"]) * 1000 for record in records}


def rows(countdowns: Mapping[int, float], lateness: Mapping[int, float]) -> list[tuple[str, ...]]:
    """Return the lines of the table, several tasks in each."""
    cells = [
        (f"{countdown:.2f}", f"{lateness[number]:.1f}" if number in lateness else "never")
        for number, countdown in countdowns.items()
    ]
    height = -(-len(cells) // PAIRS)
    columns = [cells[start : start + height] for start in range(0, len(cells), height)]
    return [tuple(cell for pair in line for cell in pair) for line in zip(*columns, strict=True)]


def mixed(count: int) -> list[int]:
    """Return the numbers below `count`, neither in order nor in reverse."""
    return sorted(range(count), key=lambda number: (number * 7 % 5, number))
