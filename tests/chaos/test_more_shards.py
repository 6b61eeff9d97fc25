"""The number of shards is raised under traffic, while the command and a worker are killed (issue 35, Show 4)."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time

import pytest

from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.connection.shard_layout import shard_prefixes
from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Ran
from tests.support.servers import new_server
from tests.support.waiting import wait_until
from tests.support.workers import Worker

BEFORE, AFTER = 3, 6
OPTIONS = {"shards": BEFORE, "visibility_timeout": 8, "connection_lost_grace": 2}
#: Each goes to another shard; the first ones have one consumer, which shows their order.
ORDERED, OTHERS = [f"ordered.{number}" for number in range(AFTER)], [f"orders.{number}" for number in range(2 * AFTER)]
RATE, THREADS, BACKLOG = 200, 3, 3600
#: Seconds of a task of the backlog that is consumed in order: much of it waits when the number is raised.
TASK_S = 0.01


class Traffic:
    """Publishes numbers to all queues, those of one queue from one thread, in their order."""

    def __init__(self, app):
        self._app, self._over = app, threading.Event()
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self.confirmed, self.failed = {}, []
        self._threads = [threading.Thread(target=self._run, args=(part,)) for part in range(THREADS)]

    def send(self, queue, task_s=0.0):
        with self._lock:
            number = next(self._numbers)
        try:
            self._app.send_task("sentinel.note", (number, task_s), queue=queue)
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.failed.append((number, queue, repr(error)))
        else:
            self.confirmed[number] = queue

    def _run(self, part):
        queues = itertools.cycle([*ORDERED, *OTHERS][part::THREADS])
        due = time.monotonic()
        while not self._over.is_set():
            self.send(next(queues))
            due = max(due + THREADS / RATE, time.monotonic() - 1)
            self._over.wait(max(0.0, due - time.monotonic()))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def start_raise():
    """Start the command, in a process of its own."""
    started = []

    def start(url):
        command = [sys.executable, "-m", "celery_redis_plus", "shards", "raise", "--broker", url, str(AFTER)]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def is_marked(client, prefix):
    """Return whether a shard tells the new number."""
    return f".{AFTER}.{BEFORE}".encode() in (client.get(f"{prefix}database_id") or b"")


#: The new shards are marked, the first old one is, messages are on their way.
MOMENTS = {
    "declaring": lambda client: is_marked(client, shard_prefixes("", AFTER)[AFTER - 1]),
    "told": lambda client: is_marked(client, ""),
    "moving": lambda client: any(client.scan_iter("*leaving_shard:*", count=10_000)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("moment", "pool"), [("declaring", "threads"), ("told", "prefork"), ("moving", "threads")])
def test_nothing_is_lost_doubled_or_out_of_order(tmp_path, figures, start_raise, moment, pool):
    with new_server() as broker:
        url = f"{broker.url()}?shards={BEFORE}"
        env = {BROKER_VARIABLE: broker.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: broker.url(1, "redis")}
        app = make_app(broker.url(), OPTIONS)

        def worker(name, pool, queues, **more):
            return Worker(
                "tests.integration.sentinel.app",
                tmp_path,
                pool=pool,
                concurrency=2,
                queues=queues,
                name=name,
                env={**env, **more},
            )

        traffic = Traffic(app)
        for number in range(BACKLOG):
            traffic.send([*ORDERED, *OTHERS][number % (3 * AFTER)], TASK_S)
        with (
            worker("ordered", "solo", ORDERED) as ordered,
            worker("others", pool, OTHERS) as others,
            worker("killed", "prefork", OTHERS) as killed,
            broker.client(1) as journal,
            broker.client() as client,
        ):
            ran = Ran(journal)
            with traffic:
                wait_until(lambda: len(ran.times()) > 100, 30, ordered.tail)
                first = start_raise(url)
                wait_until(lambda: MOMENTS[moment](client), 60, interval_s=0)
                first.kill()
                first.wait()
                killed.kill()
                killed_at = time.time()
                began = time.monotonic()
                last = start_raise(url)
                assert last.wait(120) == 0
                took_s = time.monotonic() - began
                with worker("new", "prefork", OTHERS, **{OPTIONS_VARIABLE: repr({**OPTIONS, "shards": AFTER})}):
                    time.sleep(5)
                    over = set(traffic.confirmed)
                    wait_until(lambda: over <= set(ran.times()), 60, lambda: (len(over - set(ran.times())), others.tail()))
            wait_until(
                lambda: set(traffic.confirmed) <= set(ran.times()),
                60,
                lambda: (sorted(set(traffic.confirmed) - set(ran.times()))[:20], others.tail()),
            )
            times = ran.times()
            repeated = {number: times[number] - killed_at for number in ran.repeated()}
            figures(
                f"{moment}: {len(traffic.confirmed)} tasks confirmed, {len(traffic.failed)} refused, {len(repeated)} twice; "
                f"the second command took {took_s:.1f} s"
            )
            # What the killed worker had done and not acked yet.
            assert [number for number, at in repeated.items() if not -1 < at < 0] == []
            assert len(repeated) <= 4
            for queue in ORDERED:
                in_order = [times[number] for number, to in sorted(traffic.confirmed.items()) if to == queue]
                assert in_order == sorted(in_order), queue
            assert not traffic.failed
        with admin_of_url(url.replace(f"={BEFORE}", f"={AFTER}")) as admin:
            assert list(admin.checker().run()) == []
            assert {one.queue: one.ready for one in admin.overview() if one.ready} == {}
        app.close()
