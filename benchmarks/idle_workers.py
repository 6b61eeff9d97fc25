"""``python -m benchmarks.idle_workers``: what many idle workers cost the server.

Three real Celery workers are started. The first two do what few workers do for all: sweep, and watch for lost processes. The
third one is recorded with MONITOR, from its first command until it has been idle for a while, beside entries on the server as of
so many more workers: how often it does something may depend on their number. Then its commands are sent again, at its pace, by
as many simulated workers as wanted, each under ids and a node name of its own, over as many connections. Connections that send
nothing are measured as well: their cost is the server's own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import re
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.contenders import KOMBU_REDIS, OURS, TASK_QUEUE, Contender, discover, register_transports
from benchmarks.meters import Server
from benchmarks.worker import running_worker
from celery_redis_plus.connection.protocol import pack_command
from celery_redis_plus.testing.server import EmbeddedServer

#: Workers beside the recorded one: one leads, and the other one follows as that does.
LEADERS = 2
#: Seconds that a worker is given to finish what it does once after its start; the recorded one does some things within 30 s.
STARTED_S, RECORDED_STARTED_S = 10.0, 35.0
#: Seconds within which the simulated workers start, and of the measurement.
SPREAD_S = 20.0
MEASURED_S = 30.0
#: Seconds for which the idle worker is watched.
WATCHED_S = SPREAD_S + MEASURED_S + 10.0
#: Seconds until the next heartbeat of workers that do not exist is due; they are renewed four times in it.
PRETENDED_S = 24.0
#: Commands that one connection sends within so many seconds are sent in one write, as by a pipeline.
ONE_WRITE_S = 0.0005
#: Seconds for which connections are watched that send nothing.
QUIET_S = 10.0
#: Ids of processes, sessions and connections; hashes of scripts are longer.
_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])")
_LINE = re.compile(rb"\+?(\d+\.\d+) \[\d+ ([^\]]+)\] (.*)")
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)")
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


@dataclass(frozen=True)
class Step:
    """A command of the worker: seconds after its first one, the number of its connection, and the arguments."""

    at: float
    connection: int
    arguments: tuple[bytes, ...]


def addresses(heard: bytes) -> frozenset[bytes]:
    """Return the clients in MONITOR's lines."""
    return frozenset(match[2] for match in map(_LINE.match, heard.splitlines()) if match)


def read_monitor(heard: bytes, others: frozenset[bytes] = frozenset()) -> list[Step]:
    """Return what clients sent but these others, from MONITOR's lines; what scripts call is left out."""
    steps: list[Step] = []
    connections: dict[bytes, int] = {}
    began = 0.0
    for line in heard.splitlines():
        match = _LINE.match(line)
        if not match or match[2] == b"lua" or match[2] in others:
            continue
        arguments = tuple(_ESCAPE.sub(_unescape, one) for one in _ARGUMENT.findall(match[3]))
        began = began or float(match[1])
        steps.append(Step(float(match[1]) - began, connections.setdefault(match[2], len(connections)), arguments))
    return steps


def in_one_write(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Return the commands of each write, by their times."""
    writes: list[tuple[Step, ...]] = []
    for step in steps:
        last = writes[-1][-1] if writes else None
        if last is not None and last.connection == step.connection and step.at - last.at < ONE_WRITE_S:
            writes[-1] = (*writes[-1], step)
        else:
            writes.append((step,))
    return writes


def _unescape(match: re.Match[bytes]) -> bytes:
    what = match[1]
    return bytes([int(what[1:], 16)]) if len(what) == 3 else _ESCAPED.get(what, what)


def pretend(client: Redis, workers: int) -> None:
    """Enter `workers` that do not exist into the lists by which ours tells how many there are, as if each had just been heard."""
    now_ms = time.time() * 1000
    names = [f"pretended{number}" for number in range(workers)]
    # Of another run of the server: the leader does not judge them.
    record = json.dumps({"run": "", "ids": [], "grace_s": 5, "sessions": [], "queues": [], "host": "", "pid": 0})
    with client.pipeline(transaction=False) as calls:
        calls.zadd("heartbeats:{presence}", dict.fromkeys(names, now_ms + PRETENDED_S * 1000))
        calls.hset("processes:{presence}", mapping=dict.fromkeys(names, record))
        calls.zadd(f"consumers:{{{TASK_QUEUE}}}", dict.fromkeys(names, now_ms), nx=True)
        for name in names:
            fields = {"process": name, "timeout": 60_000, "priority": 0, "state": "interested"}
            calls.hset(f"consumer:{{{TASK_QUEUE}}}:{name}", mapping=fields)
        calls.execute()


def pretend_leader(client: Redis) -> None:
    """Have a process that does not exist lead for a while: the simulated ones follow, as the recorded one did."""
    lease = {"process": "pretended", "epoch": 1, "until": int((time.time() + PRETENDED_S / 2) * 1000), "asks": 2}
    client.hset("leader:{presence}", mapping=lease)


def watch(contender: Contender, address: str, workers: int) -> tuple[list[Step], float]:
    """Return the commands of one worker among so many, and how many seconds after its first one it came to rest."""
    with tempfile.TemporaryDirectory() as directory, socket.create_connection(address.split(":")) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        heard = bytearray()
        listener = threading.Thread(target=_listen, args=(monitor, heard), daemon=True)
        listener.start()
        with ExitStack() as running, Redis.from_url(f"redis://{address}") as client:
            client.ping()
            pretending = threading.Event()

            def keep_pretending() -> None:
                while not pretending.wait(PRETENDED_S / 4):
                    pretend(client, workers - LEADERS - 1)

            if contender.name == OURS and workers > LEADERS + 1:
                threading.Thread(target=keep_pretending, daemon=True).start()
                running.callback(pretending.set)
            for number in range(LEADERS + 1):
                others = addresses(bytes(heard))
                bench = Bench(contender, False, address, Path(directory) / str(number))
                bench.directory.mkdir()
                worker = running.enter_context(running_worker(bench, "prefork", 2, node=f"n{number:012x}@bench"))
                worker.wait_ready()
                worker.settle()
                time.sleep(STARTED_S if number < LEADERS else RECORDED_STARTED_S)
            rest = len(read_monitor(bytes(heard), others))
            time.sleep(WATCHED_S)
            steps = read_monitor(bytes(heard), others)
        monitor.shutdown(socket.SHUT_RDWR)
        listener.join(5)
    return steps, steps[rest - 1].at


def _listen(monitor: socket.socket, heard: bytearray) -> None:
    while received := monitor.recv(1 << 20):
        heard += received


def simulate(
    address: str, steps: Sequence[Step], rest_at: float, workers: int, lead: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Let simulated workers start, come to rest and idle; return their share of a core then, and commands a second.

    `lead` is called every two seconds, as long as they run.
    """
    host, _, port = address.rpartition(":")
    writes = in_one_write(steps)
    own = [{name: b"%012x" % random.getrandbits(48) for name in _ids(steps)} for _ in range(workers)]
    sockets: dict[tuple[int, int], socket.socket] = {}
    selector = selectors.DefaultSelector()
    server = Server(address)
    idle_share = server.idle_share(2.0)
    began = time.monotonic()
    plan = [(began + SPREAD_S * worker / workers + steps[0].at, worker, 0) for worker in range(workers)]
    heapq.heapify(plan)
    measure_at = began + SPREAD_S + rest_at
    mark: tuple[float, float, int] | None = None
    lead_at = began
    while plan:
        at, worker, number = heapq.heappop(plan)
        if at >= lead_at:
            lead()
            lead_at = at + PRETENDED_S / 6
        if mark is None and at >= measure_at:
            mark = (time.monotonic(), server.cpu_s(), server.traffic().commands)
        if at >= measure_at + MEASURED_S:
            break
        while (left := at - time.monotonic()) > 0:
            _drain(selector, left)
        write = writes[number]
        key = worker, write[0].connection
        if key not in sockets:
            sockets[key] = socket.create_connection((host, int(port)))
            selector.register(sockets[key], selectors.EVENT_READ)
        packed = [
            pack_command(tuple(_ID.sub(lambda match, own=own[worker]: own[match[0]], one) for one in step.arguments))
            for step in write
        ]
        sockets[key].sendall(b"".join(packed))
        if number + 1 < len(writes):
            heapq.heappush(plan, (at + writes[number + 1][0].at - write[0].at, worker, number + 1))
    if mark is None:
        raise ValueError("the worker was not watched for long enough")
    elapsed = time.monotonic() - mark[0]
    share = (server.cpu_s() - mark[1]) / elapsed - idle_share
    commands = (server.traffic().commands - mark[2]) / elapsed
    for one in sockets.values():
        one.close()
    return share, commands


def connected(address: str, connections: int) -> float:
    """Return the server's share of a core with so many connections that send nothing."""
    host, _, port = address.rpartition(":")
    server = Server(address)
    idle_share = server.idle_share(2.0)
    with ExitStack() as opened:
        for _ in range(connections):
            opened.enter_context(socket.create_connection((host, int(port))))
        time.sleep(1)
        return server.idle_share(QUIET_S) - idle_share


def _drain(selector: selectors.BaseSelector, seconds: float) -> None:
    """Read replies and forget them."""
    for key, _ in selector.select(seconds):
        key.fileobj.recv(1 << 20)  # type: ignore[union-attr]


def _ids(steps: Sequence[Step]) -> set[bytes]:
    return {name for step in steps for argument in step.arguments for name in _ID.findall(argument)}


def report(rows: Iterator[tuple[str, int, float, float, float]]) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| of | workers | commands of a worker | commands executed | share of the server's core |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, workers, sent, executed, share in rows:
        yield f"| {name} | {workers:,} | {sent:.2f}/s | {executed:,.0f}/s | {share:.1%} |"


def measured(sizes: Sequence[int]) -> Iterator[tuple[str, int, float, float, float]]:
    """Watch a worker of each contender, then simulate."""
    for name in (KOMBU_REDIS, OURS):
        with EmbeddedServer() as server:
            address = f"127.0.0.1:{server.port}"
            contender = next(one for one in discover(address)[0] if one.name == name)
            for size in sizes:
                steps, rest_at = watch(contender, address, size)
                sent = sum(step.at > rest_at for step in steps) / (steps[-1].at - rest_at)
                with server.client() as client:
                    client.flushall()
                with server.client() as client:
                    lead = partial(pretend_leader, client) if name == OURS else lambda: None
                    share, executed = simulate(address, steps, rest_at, size, lead)
                yield name, size, sent, executed, share
                connections = (1 + max(step.connection for step in steps)) * size
                yield f"{name}: {connections:,} connections that send nothing", size, 0.0, 0.0, connected(address, connections)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_workers", description="Costs of idle workers to the server.")
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1_000], metavar="N", help="how many are simulated")
    options = parser.parse_args(arguments)
    # As Ctrl-C: the servers and workers are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    register_transports()
    for line in report(measured(options.workers)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
