"""Punctual timers and quick recovery beside 100,000 far tasks and 500,000 old messages (issue A, Shows 5)."""

import random
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.mountain import pile
from tests.chaos.state import places
from tests.support.waiting import wait_until

VISIBILITY_TIMEOUT_S = 4
OWN = "own"
OTHER = "other"


@pytest.fixture
def mountains(full, own_server, chaos_app):
    """An app on a server with far tasks in the queue `own`, and in `other` messages older than the visibility timeout."""
    far, old = (100_000, 500_000) if full else (5_000, 20_000)
    app = chaos_app(own_server.url(), visibility_timeout=VISIBILITY_TIMEOUT_S)
    pile(app, OTHER, old)
    pile(app, OWN, far, eta=datetime.now(UTC) + timedelta(hours=1))
    with own_server.client() as client:
        assert places(client, OWN)["delayed"] == far
        assert places(client, OTHER)["queue"] == old
        oldest = client.zrange(f"queue:{{{OTHER}}}", -1, -1)[0]
        age = int(oldest[:11], 16)  # a tag begins with the server's time in ms
        wait_until(lambda: time.time() * 1000 - age > VISIBILITY_TIMEOUT_S * 1000, 20)
    return app


def lateness(app, ledger, count, prefix):
    """Send tasks with a countdown of 1 s, and return by how many ms each was late, sorted."""
    due = {}
    for number in range(count):
        time.sleep(random.uniform(0.01, 0.04))
        name = f"{prefix}{number}"
        at = datetime.now(UTC) + timedelta(seconds=1)
        due[name] = at.timestamp()
        app.send_task("chaos.run", [name], eta=at, queue=OWN)
    wait_until(lambda: all(ledger.ended()[name] for name in due), 30)
    assert all(ledger.started()[name] == 1 for name in due)
    started = {entry.task: entry.time for entry in ledger.read() if entry.event == "start"}
    return sorted((started[name] - at) * 1000 for name, at in due.items())


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.full_only)])
def test_countdowns_are_punctual(*, pool, full, own_server, mountains, ledger, chaos_worker, figures):
    count = 200 if full else 40
    url = own_server.url()
    worker = chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool, concurrency=2, queues=[OWN])
    worker.start()
    for number in range(5):
        mountains.send_task("chaos.run", [f"warm{number}"], queue=OWN)
    wait_until(lambda: len(ledger.ended()) == 5, 20, worker.tail)
    for case in ("nobody consumes the other queue", "another worker consumes the other queue"):
        with ExitStack() as stack:
            if case.startswith("another"):
                other = chaos_worker(
                    url,
                    visibility_timeout=VISIBILITY_TIMEOUT_S,
                    pool="solo",
                    queues=[OTHER],
                    options=("--loglevel", "WARNING"),
                )
                stack.callback(other.kill)
                other.start(wait=False)
                wait_until(lambda: ledger.ended()[f"{OTHER}-backlog"], 30)
            late = lateness(mountains, ledger, count, case.split()[0])
            with own_server.client() as client:
                now = places(client, OTHER)
        p99 = late[int(len(late) * 0.99) - 1]
        figures(
            f"{case} (then {now['queue']:,} ready there): {count} countdowns of 1 s, late by p50 {late[count // 2]:.1f} "
            f"p99 {p99:.1f} max {late[-1]:.1f} min {late[0]:.1f} ms"
        )
        assert late[0] >= 0, "early"
        if full and case.startswith("nobody"):
            assert p99 <= 50


@pytest.mark.parametrize("queue", [pytest.param(OWN, marks=pytest.mark.full_only), OTHER])
def test_a_killed_workers_task_is_soon_back(*, queue, full, own_server, mountains, ledger, tmp_path, chaos_worker, figures):
    """In a queue of far tasks, and in the backlog itself, where it has its old place and priority again."""
    rounds = 5 if full else 1
    config = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
    waits = []
    for number in range(rounds):
        victim, survivor = (
            chaos_worker(
                own_server.url(),
                visibility_timeout=VISIBILITY_TIMEOUT_S,
                pool="prefork",
                concurrency=1,
                queues=[queue],
                config=config,
            )
            for _ in range(2)
        )
        name, release = f"held{number}", tmp_path / f"release{number}"
        mountains.send_task("chaos.until", [name, str(release)], queue=queue, priority=9)
        victim.start(wait=False)
        wait_until(lambda name=name: ledger.started()[name] == 1, 30, victim.tail)
        survivor.start()
        time.sleep(random.uniform(0, VISIBILITY_TIMEOUT_S))
        killed_at = time.time()
        victim.kill()
        wait_until(lambda name=name: ledger.started()[name] == 2, VISIBILITY_TIMEOUT_S + 10, survivor.tail)
        again = [entry for entry in ledger.read() if entry.task == name and entry.event == "start"][-1]
        waits.append(again.time - killed_at)
        assert again.redelivered
        release.touch()
        wait_until(lambda name=name: ledger.ended()[name] == 1, 10)
        survivor.kill()
    figures(
        f"{rounds} kills, visibility timeout {VISIBILITY_TIMEOUT_S} s: the task started on the other worker after "
        f"{min(waits):.2f} to {max(waits):.2f} s; repeats of others "
        f"{repeats(ledger.started()) - rounds - max(ledger.started()[f'{queue}-backlog'] - 1, 0)}"
    )
    assert max(waits) <= VISIBILITY_TIMEOUT_S + (1 if full else 5)
