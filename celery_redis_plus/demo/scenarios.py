"""The scenarios of the demo: each gives the workers work, and compares what they recorded with what must be.

The functions named `verify_…` need no server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from celery_redis_plus.demo.app import (
    BACKOFF_S,
    BROADCASTS,
    COUNTDOWNS,
    CRASHES,
    FAILED_RUNS,
    PRIORITIES,
    QUEUES,
    RETRIES,
)
from celery_redis_plus.demo.expectations import Expectation, Outcome

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.environment import Environment
    from celery_redis_plus.demo.records import Record

#: The first runs from the first scenario on. The second is killed.
WORKERS = SURVIVOR, VICTIM = "one", "two"

# ---- priorities

PRIORITY_TASKS = 2000
LEVELS = (0, 3, 6, 9, 255)
PRIORITIES_TIMEOUT_S = 60


def priorities(environment: Environment, console: Console) -> Outcome:
    """Publish tasks, start the first worker, and see in which order it started them."""
    console.scenario(
        "Priorities",
        f"{PRIORITY_TASKS:,} tasks over {len(LEVELS)} priorities, mixed; the worker starts when all are published. It runs one "
        "task at a time and writes down each start. Higher priorities must go first; within one, the order of publishing counts.",
    )
    published = [(number, LEVELS[number % len(LEVELS)]) for number in range(PRIORITY_TASKS)]
    began = time.monotonic()
    for number, priority in published:
        environment.app.send_task(PRIORITIES, (number, priority), queue=PRIORITIES, priority=priority)
    console.say(f"published: {PRIORITY_TASKS / (time.monotonic() - began):,.0f} tasks/s by one process")
    environment.start_worker(SURVIVOR, [PRIORITIES, COUNTDOWNS, RETRIES, BROADCASTS, CRASHES])
    records = environment.wait_for_records(PRIORITIES, PRIORITY_TASKS, PRIORITIES_TIMEOUT_S, "executed")
    if len(records) > 1:
        rate = (len(records) - 1) / (records[-1]["at"] - records[0]["at"])
        console.say(f"executed: {rate:,.0f} tasks/s by one worker with one process")
    return Outcome("Priorities", verify_priorities(published, records))


def verify_priorities(published: Sequence[tuple[int, int]], records: Sequence[Record]) -> list[Expectation]:
    """Return the expectations about tasks (number, priority) and the records of their starts, in order."""
    runs = Counter(record["number"] for record in records)
    lowest = max(LEVELS)
    overtaken, late = [], []
    last: dict[int, int] = {}
    for record in records:
        number, priority = record["number"], record["priority"]
        if priority > lowest:
            overtaken.append(number)
        lowest = min(lowest, priority)
        if number < last.get(priority, -1):
            late.append(number)
        last[priority] = max(number, last.get(priority, -1))
    return [
        Expectation.equal("tasks executed exactly once", sum(runs[number] == 1 for number, _ in published), len(published)),
        Expectation.none("tasks that a lower priority overtook", overtaken),
        Expectation.none("tasks out of publishing order within their priority", late),
    ]


# ---- countdowns

COUNTDOWN_TASKS = 20
FIRST_S, LAST_S = 0.5, 5.0
#: Generous: another program may hold the machine's cores for that long.
LATENESS_LIMIT_MS = 500


def countdowns(environment: Environment, console: Console) -> Outcome:
    """Publish tasks with countdowns in a mixed order, and compare each start with its time."""
    console.scenario(
        "Countdowns",
        f"{COUNTDOWN_TASKS} tasks are to start {FIRST_S} to {LAST_S} seconds after they are published. Until then Redis holds "
        "them, not the worker. Each start is compared with the time that was asked for.",
    )
    # Neither in order nor in reverse.
    for number in sorted(range(COUNTDOWN_TASKS), key=lambda number: (number * 7 % 5, number)):
        countdown = FIRST_S + (LAST_S - FIRST_S) * number / (COUNTDOWN_TASKS - 1)
        environment.app.send_task(COUNTDOWNS, (number,), queue=COUNTDOWNS, countdown=countdown)
    sizes = environment.admin.overview_of(COUNTDOWNS)
    console.say(f"in Redis now: {sizes.delayed} delayed, {sizes.ready} ready, {sizes.unacked} at a worker")
    records = environment.wait_for_records(COUNTDOWNS, COUNTDOWN_TASKS, LAST_S + 10, "started")
    lateness = lateness_ms(records, environment.clock_offset_s())
    if lateness:
        console.say(f"late: median {median(lateness.values()):.1f} ms, longest {max(lateness.values()):.1f} ms")
    return Outcome("Countdowns", verify_countdowns(records, lateness))


def verify_countdowns(records: Sequence[Record], lateness: Mapping[int, float]) -> list[Expectation]:
    """Return the expectations about the records of the starts."""
    runs = Counter(record["number"] for record in records)
    once = sum(runs[number] == 1 for number in range(COUNTDOWN_TASKS))
    return [
        Expectation.equal("tasks executed exactly once", once, COUNTDOWN_TASKS),
        Expectation.none("tasks that started early", [number for number, late in lateness.items() if late < 0]),
        Expectation.at_most("longest lateness", max(lateness.values(), default=float("inf")), LATENESS_LIMIT_MS, "ms"),
    ]


def lateness_ms(records: Sequence[Record], clock_offset_s: float) -> dict[int, float]:
    """Return how late each task started, in ms, by the server's clock: the one that decides when a task is due."""
    return {record["number"]: (record["at"] + clock_offset_s - record["due"]) * 1000 for record in records}


# ---- retries

RETRIED_TASKS = 10
ATTEMPTS = FAILED_RUNS + 1
RETRIES_TIMEOUT_S = 20


def retries(environment: Environment, console: Console) -> Outcome:
    """Publish tasks that fail, and follow their attempts."""
    waits = " and ".join(f"{BACKOFF_S * 2**attempt:.1f}" for attempt in range(FAILED_RUNS))
    console.scenario(
        "Retries",
        f"{RETRIED_TASKS} tasks fail {FAILED_RUNS} times and succeed then; self.retry() lets them wait {waits} seconds in "
        "between.",
    )
    for number in range(RETRIED_TASKS):
        environment.app.send_task(RETRIES, (number,), queue=RETRIES)
    records = environment.wait_for_records(RETRIES, RETRIED_TASKS * ATTEMPTS, RETRIES_TIMEOUT_S, "attempts")
    return Outcome("Retries", verify_retries(records))


def verify_retries(records: Sequence[Record]) -> list[Expectation]:
    """Return the expectations about the records of the attempts."""
    complete = 0
    hasty = []
    for number in range(RETRIED_TASKS):
        of_task = [record for record in records if record["number"] == number]
        complete += [record["attempt"] for record in of_task] == list(range(ATTEMPTS))
        for before, after in pairwise(of_task):
            wait_s = after["at"] - before["at"]
            if after["attempt"] > before["attempt"] and wait_s < BACKOFF_S * 2 ** before["attempt"]:
                hasty.append(wait_s)
    return [
        Expectation.equal(f"tasks that succeeded at attempt {ATTEMPTS}, each attempt made once", complete, RETRIED_TASKS),
        Expectation.none("retries before their back-off was over", hasty),
    ]


# ---- broadcasts

SENT_BROADCASTS = 20
BROADCASTS_TIMEOUT_S = 10
PING_S = 1.0


def broadcasts(environment: Environment, console: Console) -> Outcome:
    """Start a second worker, send tasks to all workers, and ping them."""
    console.scenario(
        "Broadcasts",
        f"A second worker starts. {SENT_BROADCASTS} tasks go to all workers (kombu.common.Broadcast), and one "
        "`app.control.ping()`.",
    )
    environment.start_worker(VICTIM, [BROADCASTS, CRASHES])
    for number in range(SENT_BROADCASTS):
        environment.app.send_task(BROADCASTS, (number,), queue=BROADCASTS)
    records = environment.wait_for_records(BROADCASTS, SENT_BROADCASTS * len(WORKERS), BROADCASTS_TIMEOUT_S, "heard")
    replies = environment.app.control.ping(timeout=PING_S)
    answered = [name.partition("@")[0] for reply in replies for name in reply]
    return Outcome("Broadcasts", verify_broadcasts(records, answered))


def verify_broadcasts(records: Sequence[Record], answered: Sequence[str]) -> list[Expectation]:
    """Return the expectations about the records of what was heard, and the names of those who answered the ping."""
    sent = list(range(SENT_BROADCASTS))
    heard = {name: [record["number"] for record in records if record["worker"] == name] for name in WORKERS}
    once = {name: sum(heard[name].count(number) == 1 for number in sent) for name in WORKERS}
    return [
        *(
            Expectation.equal(f"broadcasts that worker {name} heard exactly once", once[name], SENT_BROADCASTS)
            for name in WORKERS
        ),
        Expectation.none("workers that heard them in another order", [name for name in WORKERS if heard[name] != sent]),
        Expectation.equal("answers to the ping", len(answered), len(WORKERS)),
        Expectation.none("workers that did not answer the ping once", [name for name in WORKERS if answered.count(name) != 1]),
    ]


# ---- crash

CRASH_TASKS = 100
#: The victim is killed when so many tasks have ended.
KILL_AFTER_TASKS = 30
#: `connection_lost_grace`, and two seconds: the victim may have been the leader, which looks for lost processes.
RETURN_LIMIT_S = 7.0
CRASH_TIMEOUT_S = 30
CRASH_POLL_S = 0.01


def crash(environment: Environment, console: Console) -> Outcome:
    """Let two workers share tasks, kill one with SIGKILL in the middle of its work, and see what becomes of it."""
    console.scenario(
        "Crash",
        f"Two workers share {CRASH_TASKS} tasks with acks_late. One of them is killed with SIGKILL in the middle of a task. What "
        "it had goes back to the queue when it was without a connection for five seconds (connection_lost_grace).",
    )
    for number in range(CRASH_TASKS):
        environment.app.send_task(CRASHES, (number,), queue=CRASHES)

    def killed() -> bool:
        records = environment.records(CRASHES)
        return len(ends(records)) >= KILL_AFTER_TASKS and environment.kill_if_busy(
            VICTIM, lambda: unfinished(environment.records(CRASHES), VICTIM)
        )

    environment.wait(killed, CRASH_TIMEOUT_S, CRASH_POLL_S)
    killed_at = time.time()
    before = environment.records(CRASHES)
    sizes = environment.admin.overview_of(CRASHES)
    console.say(
        f"killed after {len(ends(before))} tasks, in the middle of task {', '.join(map(str, unfinished(before, VICTIM)))}; "
        f"in Redis now: {sizes.ready} ready, {sizes.unacked} unacked"
    )
    environment.wait(lambda: len(set(ends(environment.records(CRASHES)))) == CRASH_TASKS, CRASH_TIMEOUT_S)
    return Outcome("Crash", verify_crash(environment.records(CRASHES), killed_at))


def verify_crash(records: Sequence[Record], killed_at: float) -> list[Expectation]:
    """Return the expectations about the records of starts and ends."""
    starts = Counter(record["number"] for record in records if record["event"] == "start")
    repeated = {number for number, count in starts.items() if count > 1}
    begun_by_victim = {record["number"] for record in records if record["worker"] == VICTIM}
    lost = set(range(CRASH_TASKS)).difference(ends(records))
    cut_off = unfinished(records, VICTIM)
    again = {record["number"]: record["at"] for record in records if record["event"] == "start" and record["worker"] == SURVIVOR}
    back_s = max((again.get(number, float("inf")) - killed_at for number in cut_off), default=0.0)
    return [
        Expectation.at_least("tasks that the killed worker was in the middle of", len(cut_off), 1),
        Expectation.equal("tasks executed to the end at least once", CRASH_TASKS - len(lost), CRASH_TASKS),
        Expectation.none("tasks lost", lost),
        Expectation.none("tasks repeated without need (the killed worker had not begun them)", repeated - begun_by_victim),
        Expectation.at_most("back at a living worker after", back_s, RETURN_LIMIT_S, "s"),
    ]


def ends(records: Sequence[Record]) -> list[int]:
    """Return the tasks of the executions that came to their end."""
    return [record["number"] for record in records if record["event"] == "end"]


def unfinished(records: Sequence[Record], worker: str) -> list[int]:
    """Return the tasks that a worker has begun and not ended."""
    of_worker = [record for record in records if record["worker"] == worker]
    done = ends(of_worker)
    return [record["number"] for record in of_worker if record["event"] == "start" and record["number"] not in done]


# ---- shutdown

#: Executions that must not have increased since they were verified. (Tasks of the crash may.)
EXECUTIONS = {
    PRIORITIES: PRIORITY_TASKS,
    COUNTDOWNS: COUNTDOWN_TASKS,
    RETRIES: RETRIED_TASKS * ATTEMPTS,
    BROADCASTS: SENT_BROADCASTS * len(WORKERS),
}


def shutdown(environment: Environment, console: Console) -> Outcome:
    """Shut the worker down and look into Redis."""
    console.scenario(
        "Shutdown", "The worker that is left shuts down warmly. No message may be left, and no task may have run again since."
    )
    statuses = environment.stop_workers()
    sizes = environment.admin.overviews_of(QUEUES)
    left = {size.queue: size.ready + size.delayed + size.unacked for size in sizes}
    return Outcome("Shutdown", verify_shutdown(statuses, left, sum(len(environment.records(kind)) for kind in EXECUTIONS)))


def verify_shutdown(statuses: Mapping[str, int | None], left: Mapping[str, int], executions: int) -> list[Expectation]:
    """Return the expectations about the workers' exit statuses, the messages left by queue, and the executions."""
    return [
        Expectation.none("workers whose warm shutdown failed", [name for name, status in statuses.items() if status != 0]),
        Expectation.none("queues with messages left", [queue for queue, messages in left.items() if messages]),
        Expectation.equal("executions in all, apart from the crash", executions, sum(EXECUTIONS.values())),
    ]


SCENARIOS = (priorities, countdowns, retries, broadcasts, crash, shutdown)
