"""What lifecycle events cost: blocks in turn over queues with and without them, in one process on one core.

`off` is held against the same scripts without a trace of events in them, `on` against `off`; a second queue without events shows
the noise. Medians of the ratios of neighbouring blocks: what else runs on the machine meets both.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer, Queue

from benchmarks.bench import BODY, Bench, Figures, MeasurementError, consuming
from celery_redis_plus import clock, scripts
from celery_redis_plus.broker.consumers.settlement import Settlement

if TYPE_CHECKING:
    from benchmarks.meters import Server

STRIPPED, OFF, AGAIN, ON = "bench.stripped", "bench.off", "bench.again", "bench.on"
BLOCK = 200
PREFETCH = 10
#: Publish, claim, ack.
EVENTS_A_MESSAGE = 3
#: Includes of the scripts -> what is left of them without events.
WITHOUT_EVENTS = {
    "include/log_event.lua": """\
-- @include now
-- @include text
-- @include tag_flags
local function log_event() end
local function log_published() end
local function log_of() return false end
local function is_logged() return false end
local function error_of() end
""",
    "include/tag_flags.lua": """\
local PLAIN, BOUNDED, LOGGED, BOUNDED_AND_LOGGED = 46, 126, 45, 61
local function is_plain() return true end
""",
}


class Side:
    """One queue with a connection of its own, and what its blocks have taken."""

    def __init__(self, bench: Bench, queue: str, *, archive: bool) -> None:
        """Declare `queue`."""
        options = {**bench.contender.transport_options, "event_log": archive}
        self.connection = Connection(bench.contender.url, transport_options=options)
        channel = self.connection.channel()
        self.queue = Queue(queue)
        self.queue(channel).declare()
        channel.consumer_session.claim_commands.worker = "celery@benchmark"
        self._producer = Producer(channel)
        self._meter = bench.meter()
        self._server = bench.server
        self._channel = channel
        self.cpu_us: list[float] = []
        self.script_us: list[float] = []
        self.wall_us: list[float] = []

    def block(self, count: int = BLOCK) -> None:
        """Publish `count` messages, as Celery does, and consume them."""
        self._publish(2)
        self._consume(2)
        self._meter.start()
        self._publish(count)
        self._consume(count)
        self._meter.stop()
        server_s = self._meter.server_s or 0.0
        self.cpu_us.append((server_s + self._meter.client_s) / count * 1e6)
        self.wall_us.append(self._meter.wall_s / count * 1e6)

    def batches(self, count: int = BLOCK) -> None:
        """Publish `count` messages, claim and ack them in batches of `PREFETCH`: the scripts' time, as the server says."""
        assert self._server is not None  # noqa: S101 - run() has looked
        self._server.ask("CONFIG", "RESETSTAT")
        self._publish(count)
        session, done = self._channel.consumer_session, 0
        while done < count:
            claimed = session.claim_commands.claim([self.queue.name], PREFETCH, share=False).messages
            session.service.unacked_messages.add(claimed, session.id, clock.now_s())
            held = [session.service.unacked_messages.begin_settling(message.tag, Settlement.ACK) for message in claimed]
            session.acknowledger.settle([one for one in held if one is not None], Settlement.ACK)
            done += len(claimed)
        self.script_us.append(self._server.info("commandstats")["cmdstat_evalsha"]["usec"] / count)

    def _publish(self, count: int) -> None:
        for _ in range(count):
            task_id = str(uuid.uuid4())
            headers: dict[str, Any] = {"lang": "py", "task": "shop.tasks.bill", "id": task_id, "root_id": task_id, "retries": 0}
            self._producer.publish(BODY, routing_key=self.queue.name, exchange="", serializer="json", headers=headers)

    def _consume(self, count: int) -> None:
        seen: set[str] = set()

        def on_message(message: Any) -> None:
            seen.add(message.delivery_tag)
            message.ack()

        with consuming(self.connection, [self.queue], on_message, PREFETCH):
            while len(seen) < count:
                self.connection.drain_events(timeout=10)


@contextmanager
def _without_events() -> Iterator[None]:
    """Compose the scripts without events."""
    read = scripts._read  # noqa: SLF001 - the place that tests replace, too
    scripts._read = lambda path: WITHOUT_EVENTS.get(path) or read(path)  # noqa: SLF001 - as above
    scripts.script.cache_clear()
    try:
        yield
    finally:
        scripts._read = read  # noqa: SLF001 - as above
        scripts.script.cache_clear()


def run(bench: Bench) -> Figures:
    """Return the ratios, and what an event costs and weighs."""
    server = bench.server
    if server is None:
        raise MeasurementError("events are written on a server")
    with _without_events():
        stripped = Side(bench, STRIPPED, archive=False)
    off, again, on = (Side(bench, name, archive=name == ON) for name in (OFF, AGAIN, ON))
    for turn in range(bench.size(12, 60)):
        for side in (stripped, off, again, on) if turn % 2 else (on, again, off, stripped):
            if side is stripped:
                with _without_events():
                    side.block()
            else:
                side.block()
                side.batches()
    figures = {
        "archive.noise": _ratio(again.cpu_us, off.cpu_us),
        "archive.off": _ratio(off.cpu_us, stripped.cpu_us),
        "archive.on": _ratio(on.cpu_us, off.cpu_us),
        "archive.on_wall": _ratio(on.wall_us, off.wall_us),
        "archive.event_us": median(b - a for a, b in zip(off.script_us, on.script_us, strict=True)) / EVENTS_A_MESSAGE,
        "archive.event_bytes": _event_bytes(server, ON),
    }
    for side in (stripped, off, again, on):
        side.connection.release()
    return figures


def _ratio(values: list[float], others: list[float]) -> float:
    return median(value / other for value, other in zip(values, others, strict=True))


def _event_bytes(server: Server, queue: str) -> float:
    key = f"events:{{{queue}}}"
    length = server.ask("XLEN", key)
    if not length:
        raise MeasurementError("no event was written")
    return int(server.ask("MEMORY", "USAGE", key, "SAMPLES", 0)) / int(length)
