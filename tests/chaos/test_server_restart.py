"""A server that crashes and comes back under load, with every write on disk before it is confirmed."""

import random
import time
from collections import Counter

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.publishers import Publisher
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 60
CONCURRENCY = 2
PREFETCH = CONCURRENCY * 4

FULL_ONLY = pytest.mark.full_only


@pytest.mark.parametrize(
    ("how", "pool"),
    [
        ("kill", "prefork"),
        ("kill", "solo"),
        ("kill", "threads"),
        ("stop", "prefork"),
        pytest.param("stop", "solo", marks=FULL_ONLY),
        pytest.param("stop", "threads", marks=FULL_ONLY),
    ],
)
def test_worker_and_publisher_come_back_by_themselves(*, how, pool, full, start_server, ledger, chaos_app, chaos_worker, figures):
    rounds = 10 if full else 1
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    app = chaos_app(server.url(), visibility_timeout=VISIBILITY_TIMEOUT_S)
    worker = chaos_worker(
        server.url(),
        visibility_timeout=VISIBILITY_TIMEOUT_S,
        pool=pool,
        concurrency=CONCURRENCY,
        config={"task_acks_late": True},
    )
    worker.start()
    publisher = Publisher(app, "t", length=lambda _: 0.001, pause_s=0.002)
    publisher.start()
    published_after, started_after = [], []
    for _ in range(rounds):
        done = len(ledger.ended())
        wait_until(lambda done=done: len(ledger.ended()) > done + random.randint(50, 300), 30, worker.tail)
        getattr(server, how)()
        time.sleep(random.uniform(0, 1.5))
        server.start()
        up_at, sent, started = time.monotonic(), publisher.sent, len(ledger.started())
        wait_until(lambda sent=sent: publisher.sent > sent, 20, lambda: publisher.error)
        published_after.append(time.monotonic() - up_at)
        wait_until(lambda started=started: len(ledger.started()) > started, 20, worker.tail)
        started_after.append(time.monotonic() - up_at)
    publisher.finish(20)
    with server.client() as client:
        # No visibility timeout passes: what a lost reply left behind has to come back by itself.
        wait_until(lambda: empty(client, QUEUE), 30, lambda: f"{places(client, QUEUE)} {worker.tail()}")
        assert worker.stop() == 0
        check_invariants(client)
    lost = publisher.sent - len(ledger.ended())
    first_deliveries = Counter(entry.task for entry in ledger.read() if entry.event == "start" and not entry.redelivered)
    figures(
        f"{rounds} restarts, {publisher.sent} tasks: lost {lost}, repeats {repeats(ledger.started())}, of them not marked "
        f"redelivered {repeats(first_deliveries)}; after the server was up, published within {max(published_after):.1f} s, "
        f"consumed within {max(started_after):.1f} s"
    )
    assert lost == 0
    # A publish whose reply was lost is not doubled by its retry.
    assert repeats(first_deliveries) == 0
    assert repeats(ledger.started()) <= rounds * PREFETCH
    assert max(*published_after, *started_after) < 10
