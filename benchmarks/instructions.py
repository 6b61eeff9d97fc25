"""``python -m benchmarks.instructions``: what one message costs the server, in its own instructions, commands and bytes.

The server runs under callgrind, which counts instructions of the program and not of the kernel. So the figures are the same on a
busy machine, and differ by less than 1 % from run to run. Clients of kombu's redis transport and of ours publish and consume.
It needs valgrind on the PATH.
"""

from __future__ import annotations

import argparse
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kombu import Connection, Producer, Queue

from benchmarks.bench import BODY, MeasurementError, consuming, publish_to
from benchmarks.contenders import KOMBU_REDIS, OURS, Contender, discover, register_transports
from benchmarks.meters import Server
from celery_redis_plus.testing.server import EmbeddedServer, embedded_binary

WARM_UP = 20
#: Seconds: the server is fifty times slower than else.
PATIENCE_S = 120
#: Prefetch counts that are measured.
PREFETCHES = (1, 10, 100)
#: Options with which no client gives the slow server up.
PATIENT = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}


@dataclass
class Cost:
    """What a message cost."""

    instructions: float
    #: Commands that the server executed, calls of scripts and what these call included.
    commands: float
    bytes_in: float
    bytes_out: float
    #: Function of the server -> instructions within it and what it calls.
    functions: dict[str, float] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, float]]:
        """Where the instructions of scripts go: each command that they call, and what is around these."""
        script, pcall = self.functions.get("luaCallFunction", 0), self.functions.get("lua_pcall", 0)
        called = self.functions.get("VM_CallArgv", 0)
        commands = {name.removesuffix("Command"): value for name, value in self.functions.items() if name in _CALLED}
        yield "reading the request, writing the reply", self.instructions - script
        yield "making KEYS, ARGV and the result, collecting garbage", script - pcall
        yield "Lua, and what it passes to commands and gets from them", pcall - called
        yield "calling commands", called - sum(commands.values())
        yield from sorted(commands.items(), key=lambda item: -item[1])


#: Functions of commands that the scripts call.
_CALLED = {
    f"{name}Command"
    for name in (
        "hmget",
        "hset",
        "zadd",
        "set",
        "time",
        "exists",
        "unlink",
        "zrem",
        "zrange",
        "zremrangebyrank",
        "hincrby",
        "get",
    )
}
_FUNCTION = re.compile(r"^ *([\d,]+) \([^)]*\) +\S*:(\w+) \[")


class CountedServer:
    """A server under callgrind."""

    def __init__(self, directory: Path) -> None:
        self._callgrind_control = shutil.which("callgrind_control") or ""
        self._out = directory / "callgrind.out"
        program = directory / "server"
        options = f"--tool=callgrind --instr-atstart=no --callgrind-out-file={self._out}"
        program.write_text(f'#!/bin/sh\nexec valgrind -q {options} "{embedded_binary()}" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.server = EmbeddedServer(binary=program, start_timeout_s=PATIENCE_S)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the server; its ``host:port``."""
        with self.server:
            self.address = f"127.0.0.1:{self.server.port}"
            self._meter = Server(self.address)
            self._pid = str(self._meter.pid())
            self._client = self.server.client()
            yield self.address

    def cost(self, work: Callable[[], Any], messages: int) -> Cost:
        """What `work` costs, a message."""
        self._client.config_resetstat()
        self._control("-z")
        self._control("-i", "on")
        work()
        self._control("-i", "off")
        stats, commands = self._meter.info("stats"), self._client.info("commandstats")
        executed = sum(row["calls"] for name, row in commands.items() if "|" not in name)
        total, functions = self._dumped()
        return Cost(
            instructions=total / messages,
            commands=executed / messages,
            bytes_in=stats["total_net_input_bytes"] / messages,
            bytes_out=stats["total_net_output_bytes"] / messages,
            functions={name: value / messages for name, value in functions.items()},
        )

    def _control(self, *arguments: str) -> None:
        subprocess.run([self._callgrind_control, *arguments, self._pid], check=True, capture_output=True)

    def _dumped(self) -> tuple[int, dict[str, int]]:
        known = set(self._out.parent.glob("callgrind.out.*"))
        self._control("-d")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for path in set(self._out.parent.glob("callgrind.out.*")) - known:
                for line in path.read_text().splitlines():
                    if line.startswith("totals:"):
                        return int(line.split()[1]), _functions(path)
            time.sleep(0.05)
        raise MeasurementError("callgrind wrote no counts")


def _functions(path: Path) -> dict[str, int]:
    """Read a dump of callgrind: function -> instructions, those of its callees included."""
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {match[2]: int(match[1].replace(",", "")) for match in map(_FUNCTION.match, lines) if match}


def measure(contender: Contender, counted: CountedServer, messages: int) -> dict[str, Cost]:
    """The costs of one contender, by what was done."""
    costs = {}
    with Connection(contender.url, transport_options={**contender.transport_options, **PATIENT}) as connection:
        queue = Queue("bench.instructions")
        publish_to(connection, [queue], WARM_UP)
        channel = connection.channel()
        producer = Producer(channel)

        def publish() -> None:
            for _ in range(messages):
                producer.publish(BODY, routing_key=queue.name, exchange="", serializer="json")

        costs["publish"] = counted.cost(publish, messages)
        if hasattr(producer, "batch"):

            def publish_batch() -> None:
                with producer.batch():
                    publish()

            costs["publish, batch"] = counted.cost(publish_batch, messages)
        for prefetch in PREFETCHES:
            publish_to(connection, [queue], messages)
            seen = []

            def on_message(message: Any, seen: list[Any] = seen) -> None:
                message.ack()
                seen.append(None)

            def consume(count: int, seen: list[Any] = seen) -> None:
                wanted = len(seen) + count
                while len(seen) < wanted:
                    connection.drain_events(timeout=PATIENCE_S)

            with consuming(connection, [queue], on_message, prefetch):
                consume(WARM_UP)
                costs[f"consume, prefetch {prefetch}"] = counted.cost(lambda: consume(messages), messages)
    return costs


def report(costs: dict[str, dict[str, Cost]]) -> Iterator[str]:
    """The table, a line each."""
    yield f"{'a message':24} {'instructions':>26} {'ratio':>7} {'commands':>15} {'bytes in':>15} {'bytes out':>15}"
    for done, ours in costs[OURS].items():
        kombu = costs[KOMBU_REDIS][done]
        pairs = (
            f"{kombu.commands:6.1f} {ours.commands:6.1f}",
            f"{kombu.bytes_in:7,.0f} {ours.bytes_in:7,.0f}",
            f"{kombu.bytes_out:7,.0f} {ours.bytes_out:7,.0f}",
        )
        both = f"{kombu.instructions:11,.0f} {ours.instructions:11,.0f}"
        yield f"{done:24} {both:>26} {ours.instructions / kombu.instructions:6.2f}x " + " ".join(f"{pair:>15}" for pair in pairs)


def main() -> None:
    """Measure kombu's redis transport and ours, and print both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description="Costs of the server, a message.")
    parser.add_argument("--messages", type=int, default=200, metavar="N", help="messages of each measurement")
    parser.add_argument("--scripts", action="store_true", help="where the instructions of our scripts go")
    options = parser.parse_args()
    messages = options.messages
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not on the PATH: install the system's package valgrind")
    register_transports()
    costs = {}
    for name in (KOMBU_REDIS, OURS):
        with tempfile.TemporaryDirectory() as directory:
            counted = CountedServer(Path(directory))
            with counted.running() as address:
                contender = next(found for found in discover(address)[0] if found.name == name)
                costs[name] = measure(contender, counted, messages)
    print("columns: kombu redis, ours")
    for line in report(costs):
        print(line)
    if options.scripts:
        for done, cost in costs[OURS].items():
            print(f"\n{done}")
            for part, instructions in cost.parts():
                print(f"  {instructions:9,.0f}  {instructions / cost.instructions:6.1%}  {part}")


if __name__ == "__main__":
    main()
