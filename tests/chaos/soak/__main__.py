"""`tox -e soak`: half an hour at 80 % of what the machine carries, with every feature on; fails where something grows.

    python -m tests.chaos.soak --seconds 1800 --plot soak.svg

First it measures for a minute how many messages a second the workers carry. Then it publishes 80 % of that, and samples memory,
descriptors and threads of the publisher and of a worker of each pool, and the server's memory and keys. It ends with 1 where one
of these has a trend, a task is lost, a worker ends by itself, or an invariant of the data is violated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from celery_redis_plus.testing.server import EmbeddedServer
from tests.chaos.app import CONFIG_VARIABLE
from tests.chaos.ledger import VARIABLE, Ledger
from tests.chaos.load.queues import ARGUMENTS, CONSUMED
from tests.chaos.load.subscribers import Subscriber
from tests.chaos.soak.meters import Meters
from tests.chaos.soak.options import OPTIONS
from tests.chaos.soak.plot import svg
from tests.chaos.soak.trends import trends
from tests.chaos.state import check_invariants, empty
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Worker

POOLS = ("prefork", "threads", "gevent")
CONCURRENCY = 2
#: The part of what the machine carries that is published.
PART = 0.8
#: Seconds for which the workers warm up, and are measured then.
WARM_S, MEASURED_S = 10.0, 50.0
#: Seconds between two samples, and within which the rest is done.
SAMPLE_S, REST_S = 2.0, 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800, help="how long to run")
    parser.add_argument("--rate", type=float, default=0, help="messages a second; 0 measures first")
    parser.add_argument("--plot", type=Path, help="where to write an SVG of what was measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        soak = Soak(Path(folder), stack)
        rate = options.rate or PART * soak.capacity()
        _say(f"publishing {rate:.0f} messages a second for {options.seconds:.0f} s")
        done = soak.run(options.seconds, rate)
        failures = [*soak.finish(), *trends(soak.meters.series)]
    title = f"{options.seconds / 60:.0f} minutes, {rate:.0f} messages a second, {done} tasks"
    if options.plot:
        options.plot.write_text(svg(soak.meters.series, title))
    for one in soak.meters.series:
        amounts = [amount for _, amount in one.points]
        quarters = [amounts[len(amounts) * part // 4 : len(amounts) * (part + 1) // 4] for part in range(4)]
        _say(
            f"{one.quantity} of {one.whose}: "
            + ", ".join(f"{sorted(quarter)[len(quarter) // 2]:.1f}" for quarter in quarters if quarter)
        )
    _say("\n".join([title, *(failures or ["nothing lost, nothing grows"])]))
    return 1 if failures else 0


class Soak:
    """The server, the workers, a durable and an ordinary subscriber, and one publisher after the other."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.ledger = Ledger(folder / "ledger")
        os.environ[VARIABLE] = str(self.ledger.directory)
        self._server = stack.enter_context(EmbeddedServer())
        self._client = stack.enter_context(self._server.client())
        config = {
            "task_acks_late": True, "broker_transport_options": OPTIONS, "queues": ARGUMENTS, "configured": {"event_log": True},
        }  # fmt: skip
        self._workers = [
            Worker(
                "tests.chaos.app", folder, broker=self._server.url(), pool=pool, concurrency=CONCURRENCY, queues=CONSUMED,
                env={CONFIG_VARIABLE: repr(config)}, forked=False, quiet=False, name=pool,
            )
            for pool in POOLS
        ]  # fmt: skip
        for worker in self._workers:
            stack.callback(worker.kill)
            worker.start(wait=False)
        for worker in self._workers:
            worker.wait_until_ready(120)
        self._readers = [Subscriber(self._server.url(), f"reader-{durable}", durable=durable) for durable in (True, False)]
        for reader in self._readers:
            stack.callback(reader.stop)
            reader.start()
        self._names: list[Path] = []
        self.meters = Meters({}, self._client)

    def capacity(self) -> float:
        """Return how many messages a second the workers carry: as many are published as they take."""
        with self._publishing(0):
            time.sleep(WARM_S)
            before, began_at = self._published(), time.monotonic()
            time.sleep(MEASURED_S)
            rate = (self._published() - before) / (time.monotonic() - began_at)
        _say(f"the machine carries {rate:.0f} messages a second")
        wait_until(self._is_done, REST_S, "the end of the tasks", interval_s=0.2)
        return rate

    def run(self, seconds: float, rate: float) -> int:
        """Publish, and sample; return how many tasks have ended."""
        with self._publishing(rate) as publisher:
            groups = {worker.name: worker.pid for worker in self._workers} | {"publisher": publisher.pid}
            self.meters = Meters(groups, self._client)
            began_at = time.monotonic()
            while (at_s := time.monotonic() - began_at) < seconds:
                self.meters.sample(at_s)
                time.sleep(SAMPLE_S)
        wait_until(self._is_done, REST_S, "the end of the tasks", interval_s=0.2)
        return len(self.ledger.ended())

    def finish(self) -> list[str]:
        """End all; return what was wrong."""
        for reader in self._readers:
            reader.stop()
        failures = [f"{reader.name}: {reader.error!r}" for reader in self._readers if reader.error]
        failures += [f"{worker.name} ended by itself:\n{worker.tail()}" for worker in self._workers if not worker.running]
        failures += [f"{worker.name} ended with {status}" for worker in self._workers if (status := worker.stop(60))]
        names = {name for path in self._names for name in path.read_text().split()}
        lost = names - set(self.ledger.ended())
        if lost:
            failures.append(f"{len(lost)} tasks are lost: {sorted(lost)[:10]}")
        _try(lambda: check_invariants(self._client), failures)
        return failures

    @contextmanager
    def _publishing(self, rate: float) -> Iterator[subprocess.Popen[bytes]]:
        path = self._folder / f"names{len(self._names)}"
        self._names.append(path)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.soak.publisher", self._server.url(), str(rate), str(path)],
            cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        self._stack.callback(process.kill)
        try:
            wait_until(lambda: path.exists() and self._published(), 60, "the first publish")
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def _published(self) -> int:
        return sum(int(self._client.hget(f"meta:{{{queue}}}", "published") or 0) for queue in CONSUMED)

    def _is_done(self) -> bool:
        return all(empty(self._client, queue) for queue in CONSUMED)


def _try(check: Callable[[], None], failures: list[str]) -> None:
    try:
        check()
    except (AssertionError, redis.RedisError) as error:
        failures.append(str(error))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
