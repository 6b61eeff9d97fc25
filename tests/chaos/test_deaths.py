"""kill -9 of a worker with 20 messages in hand: how long until all of them run elsewhere, with default options.

`tox -e chaos -- tests/chaos/test_deaths.py --chaos-full --rounds 100` for the figures of docs/design/0013-lost-processes.md.
"""

from __future__ import annotations

import socket
import time

import pytest

from celery_redis_plus.options import Options
from tests.support.waiting import wait_until

HELD = 20
SINGLE = {"x-single-active-consumer": True}
POOLS = ["solo", "prefork", "threads", "gevent"]
GRACE_S, VISIBILITY_TIMEOUT_S = Options().connection_lost_grace, Options().visibility_timeout
#: Seconds beyond the grace.
MARGIN_S = 2.0
#: Seconds for one round, at most: where both watchers die, it takes longer than the promise, and the figures say so.
PATIENCE_S = 60.0
PROCESSES = "processes:{presence}"
pytestmark = [pytest.mark.full_only, pytest.mark.judged(acks=HELD)]


@pytest.fixture
def rounds(request):
    return request.config.getoption("--rounds")


@pytest.fixture
def worker(own_server, chaos_worker):
    """Prepare a worker that takes 20 messages at once: `worker("prefork", "queue")`."""

    def make(pool, queue, **arguments):
        concurrency = 1 if pool == "solo" else 2
        config = {"task_acks_late": True, "worker_prefetch_multiplier": HELD // concurrency, "queues": {queue: arguments}}
        return chaos_worker(
            own_server.url(),
            visibility_timeout=VISIBILITY_TIMEOUT_S,
            pool=pool,
            concurrency=concurrency,
            queues=[queue],
            config=config,
        )

    return make


@pytest.fixture
def run(own_server, ledger, chaos_app):
    """What the rounds share."""
    app = chaos_app(own_server.url(), visibility_timeout=VISIBILITY_TIMEOUT_S, queues={"single": SINGLE})
    with own_server.client() as client:
        yield Run(app, client, ledger)


class Run:
    def __init__(self, app, client, ledger):
        self.app, self.client, self.ledger = app, client, ledger
        self._sent = 0

    def publish(self, queue):
        """Publish messages that the worker of a queue will keep; return their names."""
        names = {f"m{number}" for number in range(self._sent, self._sent + HELD)}
        self._sent += HELD
        for name in sorted(names):
            self.app.send_task("chaos.held", [name], queue=queue)
        return names

    def wait_until_held(self, queue):
        """Wait until a worker has all messages of a queue, and has reported that it consumes it, as has another process."""
        wait_until(lambda: self.client.zcard(f"messages_index:{{{queue}}}") == HELD, 60, f"a worker has all of {queue}")
        mention = f'"{queue}"'.encode()
        wait_until(lambda: any(mention in record for record in self.client.hvals(PROCESSES)), 30, "a report")
        wait_until(lambda: self.client.hlen(PROCESSES) >= 3, 30, "two processes that report")

    def kill(self, victim, names):
        """Kill a worker; return the seconds until all of `names` have been begun by another one."""
        pid, killed_at = victim.pid, time.monotonic()
        victim.kill()
        begun = {}

        def all_run():
            begun.clear()
            for entry in self.ledger.read():
                if entry.event == "end" and entry.task in names and entry.worker != pid:
                    begun.setdefault(entry.task, entry.tick)
            return len(begun) == len(names)

        wait_until(all_run, PATIENCE_S, lambda: f"{len(begun)} of {len(names)} run elsewhere", interval_s=0.02)
        return max(begun.values()) - killed_at


def check(taken, figures, what):
    """Tell the figures, and hold them against the promise: the longest of less than 100 rounds is their 99th percentile."""
    ordered = sorted(taken)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    figures(
        f"{what}: {len(ordered)} kills, all {HELD} messages run elsewhere after {ordered[0]:.1f} s at least, "
        f"{ordered[len(ordered) // 2]:.1f} s in the median, p99 {p99:.1f} s, {ordered[-1]:.1f} s at most"
    )
    assert p99 <= GRACE_S + MARGIN_S


@pytest.mark.parametrize("pool", POOLS)
def test_what_a_killed_worker_had_runs_elsewhere(pool, rounds, worker, run, figures):
    heir = worker("threads", "other").start()
    destination = [f"{heir.name}@{socket.gethostname()}"]
    taken = []
    for number in range(rounds):
        queue = f"q{number}"
        # Before the worker starts: with solo and gevent it takes nothing more while it is busy.
        names = run.publish(queue)
        victim = worker(pool, queue).start(timeout_s=60)
        run.wait_until_held(queue)
        assert run.app.control.add_consumer(queue, destination=destination, reply=True, timeout=10)
        taken.append(run.kill(victim, names))
        run.app.control.cancel_consumer(queue, destination=destination, reply=True, timeout=10)
    assert heir.stop() == 0
    check(taken, figures, pool)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_killed_single_active_consumer_is_replaced(pool, rounds, worker, run, figures):
    active = worker(pool, "single", **SINGLE).start()
    taken = []
    for _ in range(rounds):
        standby = worker(pool, "single", **SINGLE).start()
        names = run.publish("single")
        run.wait_until_held("single")
        taken.append(run.kill(active, names))
        active = standby
    assert active.stop() == 0
    check(taken, figures, f"single active consumer, {pool}")
