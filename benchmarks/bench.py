"""What a measurement is given, and what it gives back."""

from __future__ import annotations

import importlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from amqp.exceptions import ChannelError
from kombu import Connection, Consumer, Producer, Queue

from benchmarks.contenders import ON_SERVER, Contender
from benchmarks.journal import Journal
from benchmarks.meters import Meter, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Figures = dict[str, float]
T = TypeVar("T")

#: A JSON body of 1 KB.
BODY = {"payload": "x" * 1010}
PAYLOAD = "x" * 1024


class MeasurementError(RuntimeError):
    """A contender did not do what was measured (a message lost, a worker that did not start)."""


@dataclass(frozen=True)
class Bench:
    """One sample: one contender, one size, a directory of its own."""

    contender: Contender
    quick: bool
    server_address: str
    directory: Path

    def size(self, quick: T, full: T) -> T:
        """``quick`` in a quick run, else ``full``."""
        return quick if self.quick else full

    @property
    def server(self) -> Server | None:
        """The server's counters, where this contender's messages live there."""
        return Server(self.server_address) if self.contender.name in ON_SERVER else None

    def meter(self) -> Meter:
        """A meter that also reads the server, where there is one to read."""
        return Meter(self.server)

    def connect(self, **kwargs: Any) -> Connection:
        """A new connection to the contender."""
        options = self.contender.transport_options
        return Connection(self.contender.url, transport_options=dict(options), **kwargs)

    def journal(self) -> Journal:
        """The sample's journal, opened once more."""
        return Journal(self.directory / "journal")

    def app_environment(self, **conf: Any) -> dict[str, str]:
        """The environment in which ``benchmarks.app`` is this contender's app."""
        spec = self.contender.as_json() | {"conf": conf, "journal": str(self.directory / "journal")}
        return {"CRP_BENCH_APP": json.dumps(spec)}

    def app_module(self, **conf: Any) -> Any:
        """``benchmarks.app`` in this process (once a process: samples are fresh processes)."""
        os.environ.update(self.app_environment(**conf))
        return importlib.import_module("benchmarks.app")


def publish_to(connection: Connection, queues: list[Queue], count: int, body: Any = None) -> None:
    """``count`` messages round robin over ``queues``, which are declared first."""
    channel = connection.channel()
    for queue in queues:
        queue(channel).declare()
    publish = Producer(channel).publish
    names = [queue.name for queue in queues]
    for number in range(count):
        publish(body or BODY, routing_key=names[number % len(names)], exchange="", serializer="json")
    channel.close()


def size_of(connection: Connection, queue: str) -> int:
    """Ready messages, as a passive declare tells."""
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except ChannelError:  # to kombu's redis transport an empty queue does not exist
            return 0


@contextmanager
def consuming(connection: Connection, queues: list[Queue], callback: Callable[[Any], None], prefetch: int) -> Iterator[Consumer]:
    """A consumer with ``prefetch`` credit; ``callback`` gets each message and must ack it."""
    channel = connection.channel()
    consumer = Consumer(channel, queues, on_message=callback, prefetch_count=prefetch)
    consumer.consume()
    try:
        yield consumer
    finally:
        consumer.cancel()
        channel.close()
