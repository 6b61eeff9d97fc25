"""A worker is killed with SIGKILL in the middle of its work: nothing may be lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import CRASHES, VISIBILITY_TIMEOUT_S
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.task_log import Record

TITLE = "Crash"
TASKS = 100
SURVIVOR, VICTIM = "one", "two"
#: The victim is killed when so many tasks have ended.
KILL_AFTER_TASKS = 30
#: Nothing is heard of a dead worker for the visibility timeout, and a sweep needs at most a second.
RETURN_LIMIT_S = VISIBILITY_TIMEOUT_S + 1.0
TIMEOUT_S = 30


def run_scenario(environment: Environment, console: Console) -> Outcome:
    """Let two workers share the tasks, kill one of them, and see what becomes of its work."""
    console.scenario(
        TITLE,
        f"Two workers share {TASKS} tasks with acks_late. One of them is killed with SIGKILL in the middle of a task. What it "
        f"had is given to the other one when it was silent for the visibility timeout, here {VISIBILITY_TIMEOUT_S} seconds.",
    )
    for number in range(TASKS):
        environment.app.send_task(CRASHES, (number,), queue=CRASHES)
    environment.wait(lambda: ended(environment.task_log.read(CRASHES)) >= KILL_AFTER_TASKS, TIMEOUT_S, poll_s=0.01)
    environment.wait(
        lambda: environment.kill_if_busy(VICTIM, lambda: unfinished(environment.task_log.read(CRASHES), VICTIM)),
        TIMEOUT_S,
        poll_s=0.01,
    )
    killed_at = time.time()
    sizes = environment.sizes(CRASHES)
    before = environment.task_log.read(CRASHES)
    console.say(
        f"killed after {ended(before)} tasks, in the middle of {_names(unfinished(before, VICTIM)) or 'none'}; "
        f"in Redis now: {sizes.ready} ready, {sizes.unacked} unacked"
    )
    with console.progress("ended", TASKS) as progress:

        def all_done() -> bool:
            records = environment.task_log.read(CRASHES)
            progress(TASKS - len(missing(records)))
            return not missing(records)

        environment.wait(all_done, TIMEOUT_S)

    records = environment.task_log.read(CRASHES)
    back_s = seconds_until_back(records, killed_at)
    repeats = sorted(number for number, count in starts(records).items() if count > 1)
    console.say(f"started twice: {_names(repeats) or 'none'}; the killed worker's last task came back after {back_s:.2f} s")
    return Outcome(
        TITLE,
        verify(records, killed_at),
        {"after SIGKILL": f"0 of {TASKS} lost, {len(repeats)} repeated, back after {back_s:.1f} s"}
        if not missing(records)
        else {},
    )


def verify(records: Sequence[Record], killed_at: float) -> list[Expectation]:
    """Return the expectations about the records of starts and ends."""
    cut_off = unfinished(records, VICTIM)
    begun_by_victim = {record["number"] for record in records if record["worker"] == VICTIM}
    repeated = {number for number, count in starts(records).items() if count > 1}
    return [
        Expectation.at_least("tasks that the killed worker was in the middle of", len(cut_off), 1),
        Expectation.equal("tasks executed to the end at least once", TASKS - len(missing(records)), TASKS),
        Expectation.none("tasks lost", missing(records)),
        Expectation.none("tasks repeated without need (the killed worker had not begun them)", repeated - begun_by_victim),
        Expectation.at_most("back at a living worker after", seconds_until_back(records, killed_at), RETURN_LIMIT_S, "s"),
    ]


def ended(records: Sequence[Record]) -> int:
    """Return how many executions came to their end."""
    return sum(record["event"] == "end" for record in records)


def starts(records: Sequence[Record]) -> Counter[int]:
    """Return how often each task was begun."""
    return Counter(record["number"] for record in records if record["event"] == "start")


def missing(records: Sequence[Record]) -> list[int]:
    """Return the tasks that never came to their end."""
    done = {record["number"] for record in records if record["event"] == "end"}
    return [number for number in range(TASKS) if number not in done]


def unfinished(records: Sequence[Record], worker: str) -> list[int]:
    """Return the tasks that a worker has begun and not ended."""
    of_worker = [record for record in records if record["worker"] == worker]
    done = {record["number"] for record in of_worker if record["event"] == "end"}
    return [record["number"] for record in of_worker if record["event"] == "start" and record["number"] not in done]


def seconds_until_back(records: Sequence[Record], killed_at: float) -> float:
    """Return how long after the kill the last of the victim's unfinished tasks began again; infinity if one never did."""
    cut_off = set(unfinished(records, VICTIM))
    again = {
        r["number"]: r["at"] for r in records if r["event"] == "start" and r["worker"] == SURVIVOR and r["number"] in cut_off
    }
    return max((again.get(number, float("inf")) - killed_at for number in cut_off), default=0.0)


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(f"task {number}" for number in numbers)
