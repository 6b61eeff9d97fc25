"""Message groups while workers are killed: never two of a group in work, and the order of each group kept."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.ledger import Entry

QUEUE = "groups"
VISIBILITY_TIMEOUT_S = 3
WORKERS = 4
TASK_S = 0.01


def overlaps(entries: Iterable[Entry], killed: dict[int, float]) -> Iterator[tuple[Entry, Entry]]:
    """Yield each start of a task while another one of its group was in work: up to its end, or the kill of its worker."""
    running: dict[str, dict[tuple[int, str], Entry]] = defaultdict(dict)
    for entry in sorted(entries, key=lambda entry: entry.tick):
        of_group = running[entry.task.partition(".")[0]]
        if entry.event == "start":
            for other in of_group.values():
                if killed.get(other.worker, float("inf")) > entry.tick:
                    yield other, entry
            of_group[entry.pid, entry.task] = entry
        else:
            of_group.pop((entry.pid, entry.task), None)


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.full_only) for pool in ("threads", "gevent"))]
)
def test_no_two_of_a_group_are_in_work_while_workers_are_killed(
    *, pool, full, own_server, ledger, chaos_app, chaos_worker, figures
):
    groups, tasks, kills = (1_000, 20_000, 10) if full else (1_000, 2_000, 3)
    url = own_server.url()
    options = {"queues": {QUEUE: {"x-group-concurrency": 1}}, "task_acks_late": True, "worker_prefetch_multiplier": 2}
    configured = {"group_of": lambda _, args, __: args[0].partition(".")[0]}
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S, configured=configured, **options)
    published: dict[str, float] = {}
    with app.connection_for_write() as connection:
        for number in range(tasks):
            name = f"g{number % groups}.{number // groups}"
            app.send_task("chaos.run", [name, TASK_S], connection=connection, queue=QUEUE)
            published[name] = time.monotonic()
    workers = [
        chaos_worker(
            url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool, concurrency=2, config=options, queues=[QUEUE]
        ).start()
        for _ in range(WORKERS)
    ]
    killed: dict[int, float] = {}
    for moment in sorted(random.sample(range(1, int(tasks * 0.9)), kills)):
        wait_until(lambda moment=moment: len(ledger.started()) >= moment, 120, workers[0].tail, interval_s=0.01)
        victim = random.choice(workers)
        pid = victim.pid
        victim.kill()
        killed[pid] = time.monotonic()
        victim.start()
    with own_server.client() as client:
        wait_until(lambda: empty(client, QUEUE), 120, lambda: f"{places(client, QUEUE)} {workers[0].tail()}")
        for worker in workers:
            assert worker.stop() == 0
        check_invariants(client)
        assert client.exists(f"groups:{{{QUEUE}}}", f"held:{{{QUEUE}}}") == 0
    entries = ledger.read()
    assert list(overlaps(entries, killed)) == []
    first: dict[str, float] = {}
    for entry in sorted(entries, key=lambda entry: entry.tick):
        if entry.event == "start":
            first.setdefault(entry.task, entry.tick)
    order: dict[str, list[int]] = defaultdict(list)
    for name in first:
        group, _, number = name.partition(".")
        order[group].append(int(number))
    assert [group for group, numbers in order.items() if numbers != sorted(numbers)] == []
    assert len(first) == tasks
    begun = min(first.values())
    waits = [tick - max(published[name], begun) for name, tick in first.items()]
    figures(
        f"{tasks} tasks of {groups} groups, {kills} kills of {WORKERS} workers: no overlap, order kept; mean wait "
        f"{sum(waits) / len(waits):.2f} s, longest {max(waits):.2f} s"
    )
