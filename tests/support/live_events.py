"""Writes lives of messages into queues' event logs as they happen: events have the time at which they are written."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_redis_plus.events import Event, entry_id
from celery_redis_plus.keys import Keys
from tests.support.event_streams import add_events, life

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.testing.server import EmbeddedServer

#: What the scripts add to the server's ms where a numbering begins.
EPOCH_ADD = 10**13
TICK_S = 0.25


def unrepeating_client(server: EmbeddedServer) -> redis.Redis:
    """Return a client that sends a pipeline once: redis-py's own sends one again whose replies were lost, events and all."""
    return server.client(retry=Retry(NoBackoff(), 0))


class LiveEvents:
    """A thread that writes them.

    Args:
        connect: returns a client that repeats nothing by itself; called again after the server was away.
        queues: name -> the prefix of the broker, or shard, that has it.
        rate: messages that are published a second, over all queues.
        seed: chooses their fates.
    """

    def __init__(self, connect: Callable[[], redis.Redis], queues: Mapping[str, str], *, rate: float, seed: int = 1) -> None:
        self._connect = connect
        self._queues = dict(queues)
        self._rate = rate
        self._random = random.Random(seed)
        self._epoch = time.time_ns() // 1_000_000 + EPOCH_ADD
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: Queue -> event -> how many of them are written.
        self.written: dict[str, Counter[str]] = {queue: Counter() for queue in queues}
        self.messages = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """Stop, and return how many events were written."""
        self._stop.set()
        self._thread.join()
        return sum(counts.total() for counts in self.written.values())

    def _run(self) -> None:
        client = self._connect()
        due: list[tuple[int, int, str, Event]] = []
        began, step, names = time.monotonic(), 0, list(self._queues)
        while not self._stop.wait(TICK_S):
            now_us = time.time_ns() // 1000
            while self.messages < (time.monotonic() - began) * self._rate:
                queue = names[self.messages % len(names)]
                for event in life(self.messages, now_us, self._random, queue_id=f"{names.index(queue):x}"):
                    heapq.heappush(due, (event.ts, step, queue, event))
                    step += 1
                self.messages += 1
            ready: dict[str, list[Event]] = {}
            while due and due[0][0] <= now_us:
                _, _, queue, event = heapq.heappop(due)
                ready.setdefault(queue, []).append(event)
            for queue, events in ready.items():
                client = self._write(client, queue, events)
        client.close()

    def _write(self, client: redis.Redis, queue: str, events: list[Event]) -> redis.Redis:
        """Write events, each once, however often the server is away."""
        before = self.written[queue].total()
        while True:
            try:
                there = self._count(client, queue) - before
                # A pipeline is one part of the commands, in their order, where the connection breaks.
                add_events(client, queue, events[there:], prefix=self._queues[queue], epoch=self._epoch)
            except RedisError:
                client.close()
                time.sleep(0.1)
                client = self._connect()
            else:
                self.written[queue].update(event.event for event in events)
                return client

    def _count(self, client: redis.Redis, queue: str) -> int:
        key = Keys(self._queues[queue]).queue(queue).events
        if not client.exists(key):
            return 0
        return entry_id(client.xinfo_stream(key)["last-generated-id"])[1]
