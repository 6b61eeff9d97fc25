"""Workers that stand still for longer than the visibility timeout, and then go on as if nothing had been."""

import random

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 3
CONCURRENCY = 2
PREFETCH = CONCURRENCY * 4
#: So long that a busy machine publishes faster than the workers work.
TASK_S = 0.04


@pytest.mark.parametrize("acks_late", [True, False])
def test_what_a_frozen_worker_held_runs_elsewhere(*, acks_late, full, own_server, ledger, chaos_app, chaos_worker, figures):
    rounds = 10 if full else 1
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    workers = [
        chaos_worker(
            url,
            visibility_timeout=VISIBILITY_TIMEOUT_S,
            pool="prefork",
            concurrency=CONCURRENCY,
            config={"task_acks_late": acks_late},
        ).start()
        for _ in range(2)
    ]
    sent = 0
    held = 0
    with own_server.client() as client:

        def in_hand():
            return places(client, QUEUE)["messages_index"]

        for _ in range(rounds):
            done = len(ledger.ended())
            for _ in range(400):
                app.send_task("chaos.run", [f"t{sent}", TASK_S])
                sent += 1
            wait_until(lambda done=done: len(ledger.ended()) > done + random.randint(20, 100), 30)
            frozen = random.choice(workers)
            frozen.freeze()
            # The other one works all off, and then what comes back from the frozen one, all of which it may claim.
            wait_until(lambda: 0 < in_hand() <= PREFETCH and places(client, QUEUE)["queue"] == 0, 30)
            held += in_hand()
            wait_until(lambda: empty(client, QUEUE), VISIBILITY_TIMEOUT_S + 10, lambda: places(client, QUEUE))
            frozen.thaw()
        wait_until(lambda: empty(client, QUEUE), 20, lambda: places(client, QUEUE))
        for worker in workers:
            assert worker.stop() == 0
        check_invariants(client)
        assert empty(client, QUEUE)
    lost = sent - len(ledger.ended())
    figures(f"{sent} tasks, {rounds} freezes: {held} came back, lost {lost}, repeats {repeats(ledger.started())}")
    assert lost == 0
    assert repeats(ledger.started()) <= rounds * (PREFETCH + CONCURRENCY)


def test_a_thawed_workers_requeue_takes_nothing_away(*, own_server, ledger, tmp_path, chaos_app, chaos_worker, figures):
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    first, second = (chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool="prefork", concurrency=1) for _ in range(2))
    for_first, for_second = tmp_path / "first", tmp_path / "second"
    app.send_task("chaos.rejected_first", ["t", str(for_first), str(for_second)])
    first.start(wait=False)
    wait_until(lambda: ledger.started()["t"] == 1, 30, first.tail)
    second.start()
    first.freeze()
    wait_until(lambda: ledger.started()["t"] == 2, VISIBILITY_TIMEOUT_S + 10, second.tail)
    first.thaw()
    for_first.touch()
    wait_until(lambda: ledger.rejected()["t"] == 1, 10, first.tail)
    with own_server.client() as client:
        # The requeue was sent and had its answer: a worker that ends has settled everything.
        assert first.stop() == 0
        assert places(client, QUEUE)["messages_index"] == 1
        for_second.touch()
        wait_until(lambda: empty(client, QUEUE), 10, second.tail)
        assert second.stop() == 0
        check_invariants(client)
    assert ledger.started()["t"] == 2
    assert ledger.ended()["t"] == 1
    figures("a requeue that came after the recovery changed nothing: 2 starts, 1 end")


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_a_thawed_worker_begins_nothing_that_others_have_by_now(*, pool, own_server, ledger, tmp_path, chaos_app, chaos_worker):
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    first, second = (
        chaos_worker(
            url,
            visibility_timeout=VISIBILITY_TIMEOUT_S,
            pool=pool,
            concurrency=1,
            config={"task_acks_late": True, "worker_prefetch_multiplier": 8},
        )
        for _ in range(2)
    )
    release = tmp_path / "release"
    prefetched = [f"t{number}" for number in range(7)]
    app.send_task("chaos.until", ["held", str(release)], priority=9)
    for name in prefetched:
        app.send_task("chaos.run", [name])
    first.start(wait=False)
    with own_server.client() as client:
        wait_until(
            lambda: ledger.started()["held"] == 1 and places(client, QUEUE)["messages_index"] == 8,
            30,
            lambda: f"{places(client, QUEUE)} {first.tail()}",
        )
        first.freeze()
        second.start()
        # It has what was not begun, and the one that runs, too.
        wait_until(lambda: ledger.started()["held"] == 2, VISIBILITY_TIMEOUT_S + 15, second.tail)
        release.touch()
        wait_until(lambda: set(prefetched) <= set(ledger.ended()), 15, second.tail)
        wait_until(lambda: empty(client, QUEUE), 15, second.tail)
        first.thaw()
        app.send_task("chaos.run", ["after"], queue=QUEUE)
        wait_until(lambda: ledger.ended()["after"] == 1 and ledger.ended()["held"] == 2, 15, first.tail)
        assert first.stop() == 0
        assert second.stop() == 0
        check_invariants(client)
    assert {name: count for name, count in ledger.started().items() if count > 1} == {"held": 2}
