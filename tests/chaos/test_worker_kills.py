"""Workers that are killed at random, whole process groups at a time (issue A, Shows 4)."""

import random

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 3
CONCURRENCY = 2
PREFETCH = CONCURRENCY * 4
TASK_S = 0.002


@pytest.mark.parametrize(
    ("pool", "acks_late"),
    [("prefork", True), ("prefork", False), pytest.param("threads", True, marks=pytest.mark.full_only), ("threads", False)],
)
def test_killed_workers_lose_nothing_but_what_was_acknowledged_early(
    *, pool, acks_late, full, own_server, ledger, chaos_app, chaos_worker, figures
):
    tasks, kills = (10_000, 10) if full else (1_000, 2)
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    with app.connection_for_write() as connection:
        for number in range(tasks):
            app.send_task("chaos.run", [f"t{number}", TASK_S], connection=connection)
    worker = chaos_worker(
        url,
        visibility_timeout=VISIBILITY_TIMEOUT_S,
        pool=pool,
        concurrency=CONCURRENCY,
        config={"task_acks_late": acks_late, "worker_prefetch_multiplier": PREFETCH // CONCURRENCY},
    )

    # At the random moments when so many tasks have run; the last ones while the work lasts.
    moments = sorted(random.sample(range(1, int(tasks * 0.95)), kills))
    worker.start()
    for moment in moments:
        wait_until(lambda moment=moment: len(ledger.started()) >= moment, 60, worker.tail, interval_s=0.002)
        worker.kill()
        worker.start()
    with own_server.client() as client:
        wait_until(lambda: empty(client, QUEUE), 60, lambda: f"{places(client, QUEUE)} {worker.tail()}")
        assert worker.stop() == 0
        check_invariants(client)

    lost = tasks - len(ledger.ended())
    never_started = tasks - len(ledger.started())
    figures(
        f"{tasks} tasks, {kills} kills: repeats {repeats(ledger.started())}, not carried to their end {lost}, "
        f"of them {lost - never_started} under way when killed, {never_started} acknowledged and not yet begun"
    )
    if acks_late:
        assert lost == 0
    else:
        # Celery acknowledges before it runs a task: a kill may lose one task of each pool process.
        assert lost <= kills * CONCURRENCY
    assert repeats(ledger.started()) <= kills * PREFETCH


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_an_early_ack_has_left_before_its_task_runs(*, pool, own_server, ledger, tmp_path, chaos_app, chaos_worker):
    """Or a task that kills its worker would come back and kill the next one, which nobody asked for."""
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    worker = chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool).start()
    for number in range(3):
        release = tmp_path / f"release{number}"
        app.send_task("chaos.until", [f"t{number}", str(release)])
        wait_until(lambda number=number: ledger.started()[f"t{number}"], 10, worker.tail)
        with own_server.client() as client:
            wait_until(lambda: empty(client, QUEUE), 1, lambda: places(client, QUEUE))
        release.touch()
        wait_until(lambda number=number: ledger.ended()[f"t{number}"], 10, worker.tail)
