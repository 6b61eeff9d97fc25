"""A consumer in a process of its own, and what such processes noted.

`python -m tests.support.consuming URL NAME OPTIONS`, the options being JSON: those of the transport, and `queue`, `prefetch`,
`arguments` (the queue's), `priority`, `work_s`, `exclusive`, `ack` (false: it keeps what it gets), `dies` (at its first
delivery), `stepped_clock` (a test steps the clock that its scripts have). SIGUSR1 cancels the consumer; the process goes on
with what it has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.apps import JOURNAL_DB, plain_url
from tests.support.clock import scripts_with_steps
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.judge import records
from tests.support.judge.recorder import install, note
from tests.support.replies import list_items
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

#: A list of `name body redelivered`, in the order in which the server heard of the deliveries.
NOTES = "notes"
READY = "ready"
#: Names of processes that are about to consume.
JOINING = "joining"
OWN = ("queue", "prefetch", "arguments", "priority", "work_s", "exclusive", "ack", "dies", "stepped_clock")


class Consumers:
    """Consumer processes on one server; all are killed at the end."""

    def __init__(self, url: str, journal: redis.Redis, logs: Path) -> None:
        self._url = url
        self._journal = journal
        self._logs = logs
        self._started = 0
        self.processes: dict[str, ForkedProcess] = {}

    def start(self, name: str, **options: Any) -> None:
        """Start a consumer; `wait` returns when it consumes."""
        with (self._logs / f"{name}.log").open("ab") as log:
            arguments = ["tests.support.consuming", self._url, name, json.dumps({"queue": "q", **options})]
            self.processes[name] = fork_server().start(arguments, os.environ, log)
        self._started += 1

    def wait(self, timeout_s: float = 60.0) -> None:
        """Return when all that were started consume."""
        wait_until(lambda: self._journal.scard(READY) >= self._started, timeout_s, "all consume")

    def wait_to_join(self, name: str, timeout_s: float = 60.0) -> None:
        """Return when the process `name` is about to consume."""
        wait_until(lambda: self._journal.sismember(JOINING, name), timeout_s, f"{name} is about to consume", interval_s=0.005)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        note(records.KILLED, process=process.pid)
        process.kill()
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self.processes[name]
        if number == signal.SIGSTOP:
            note(records.SILENT, process=process.pid)
        process.send_signal(number)
        if number == signal.SIGCONT:
            note(records.HEARD, process=process.pid)

    def notes(self) -> list[tuple[str, str, bool]]:
        """Return (name, body, redelivered) of all deliveries."""
        rows = [row.decode().split(" ") for row in list_items(self._journal, NOTES)]
        return [(name, body, redelivered == "True") for name, body, redelivered in rows]

    def shares(self) -> Counter[str]:
        return Counter(name for name, _, _ in self.notes())

    def count(self) -> int:
        return self._journal.llen(NOTES)


@contextmanager
def consumers(url: str, journal: redis.Redis, logs: Path) -> Iterator[Consumers]:
    journal.flushdb()
    crew = Consumers(url, journal, logs)
    try:
        yield crew
    finally:
        for name in list(crew.processes):
            crew.kill(name)


def main(url: str, name: str, options: dict[str, Any]) -> None:
    install()
    own = {key: options.pop(key, None) for key in OWN}
    with scripts_with_steps() if own["stepped_clock"] else nullcontext():
        consume(url, name, own, options)


def consume(url: str, name: str, own: dict[str, Any], options: dict[str, Any]) -> None:
    import kombu
    import redis

    journal = redis.Redis.from_url(plain_url(url, JOURNAL_DB))
    connection = kombu.Connection(url, transport_options=options)
    connection.connect()
    queue = kombu.Queue(
        own["queue"],
        durable=True,
        queue_arguments=own["arguments"],
        consumer_arguments=None if own["priority"] is None else {"x-priority": own["priority"]},
    )

    def take(message: Any) -> None:
        if own["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        journal.rpush(NOTES, f"{name} {message.payload} {bool(message.delivery_info['redelivered'])}")
        if own["work_s"]:
            time.sleep(own["work_s"])
        if own["ack"] is not False:
            message.ack()

    consumer = kombu.Consumer(connection.channel(), [queue], on_message=take)
    consumer.qos(prefetch_count=own["prefetch"] or 1)
    cancelled: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: cancelled.append(number))
    journal.sadd(JOINING, name)
    consumer.consume()
    journal.sadd(READY, f"{name} {time.monotonic_ns()}")
    while True:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        if cancelled:
            cancelled.clear()
            consumer.cancel()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
