"""What is read from clocks, from the server and from /proc."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
#: Seconds for which a server is watched that has nothing to do.
IDLE_S = 0.3


@dataclass(frozen=True)
class Traffic:
    """Commands that the server executed, those within scripts included, and bytes from and to clients."""

    commands: int
    bytes_in: int
    bytes_out: int

    def since(self, before: Traffic) -> Traffic:
        """The difference."""
        return Traffic(self.commands - before.commands, self.bytes_in - before.bytes_in, self.bytes_out - before.bytes_out)


class Server:
    """Reads the server's own counters over a connection that the contenders do not see."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._client: Redis = Redis(host=host, port=int(port), protocol=2, decode_responses=True)

    def info(self, section: str) -> dict[str, Any]:
        """One section of INFO."""
        reply: Any = self._client.info(section)
        return dict(reply)

    def cpu_s(self) -> float:
        """User and system time of the server's main thread so far: the one that executes commands."""
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])

    def traffic(self) -> Traffic:
        """What the server has executed and transferred so far."""
        stats = self.info("stats")
        return Traffic(
            int(stats["total_commands_processed"]), int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])
        )

    def idle_share(self, seconds: float = IDLE_S) -> float:
        """Which share of its time the main thread works while no client asks for anything."""
        began, cpu_s = time.perf_counter(), self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - cpu_s) / (time.perf_counter() - began)

    def commands_sent(self, seconds: float) -> int:
        """Listen for so many seconds; return how many commands clients have sent: of a script the call, not what it calls."""
        with socket.create_connection(self._address) as connection:
            connection.sendall(b"MONITOR\r\n")
            give_up_at, heard = time.monotonic() + seconds, b""
            while (left_s := give_up_at - time.monotonic()) > 0:
                connection.settimeout(left_s)
                with suppress(TimeoutError):
                    heard += connection.recv(65536)
        # The first line is the answer to MONITOR itself.
        lines = heard.splitlines()[1:]
        return sum(b" lua] " not in line for line in lines)

    def pid(self) -> int:
        """The server's process id."""
        return int(self.info("server")["process_id"])

    def used_memory(self) -> int:
        """Bytes in use."""
        return int(self.info("memory")["used_memory"])

    def ask(self, *command: Any) -> Any:
        """The reply to any command."""
        return self._client.execute_command(*command)

    def flush(self) -> None:
        """Delete all and return freed memory, so that the next sample finds a clean server."""
        self._client.flushall()
        self._client.execute_command("MEMORY PURGE")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@dataclass
class Meter:
    """Wall time, CPU of this process, CPU and traffic of the server between ``start`` and ``stop``.

    It is made while no client asks the server for anything: it looks what the idle server costs, once.
    """

    server: Server | None
    wall_s: float = 0.0
    client_s: float = 0.0
    #: What the server spent beyond its own timers.
    server_s: float | None = None
    traffic: Traffic | None = None
    _idle_share: float = field(default=0.0, repr=False)
    _marks: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    _server_marks: tuple[float, Traffic] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Look at the idle server."""
        if self.server:
            self._idle_share = self.server.idle_share()

    def start(self) -> None:
        """Begin; the clocks are read last."""
        if self.server:
            self._server_marks = (self.server.cpu_s(), self.server.traffic())
        self._marks = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        """End; the clocks are read first."""
        wall, client = time.perf_counter(), time.process_time()
        self.wall_s = wall - self._marks[0]
        self.client_s = client - self._marks[1]
        if self.server and self._server_marks is not None:
            cpu_s, traffic = self._server_marks
            self.server_s = self.server.cpu_s() - cpu_s - self._idle_share * self.wall_s
            self.traffic = self.server.traffic().since(traffic)

    def figures(self, prefix: str, messages: int) -> dict[str, float]:
        """``rate`` in messages/s; a message's CPU (``client_us``, ``server_us``), ``commands``, ``bytes_in``, ``bytes_out``."""
        figures = {
            f"{prefix}.client_us": self.client_s / messages * 1e6,
            f"{prefix}.rate": messages / self.wall_s,
        }
        if self.server_s is not None:
            figures[f"{prefix}.server_us"] = self.server_s / messages * 1e6
        if self.traffic is not None:
            figures[f"{prefix}.commands"] = self.traffic.commands / messages
            figures[f"{prefix}.bytes_in"] = self.traffic.bytes_in / messages
            figures[f"{prefix}.bytes_out"] = self.traffic.bytes_out / messages
        return figures


def process_tree(pid: int) -> list[int]:
    """``pid`` and all its living descendants. Only itself where there is no /proc."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    tree = [pid]
    for member in tree:
        tree.extend(children.get(member, ()))
    return tree


def _parents() -> Iterator[tuple[int, int]]:
    if not PROC.is_dir():
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # ended since iterdir
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def cpu_of(pid: int) -> float:
    """CPU seconds of one process with all its threads.

    Linux gives every process a CPU clock in nanoseconds (see clock_getcpuclockid(3)); the counters
    in /proc/PID/stat have steps of 10 ms, too coarse for short runs.
    """
    if sys.platform != "linux":
        raise OSError("CPU time of another process is only read on Linux")
    return time.clock_gettime((~pid << 3) | 2)


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process and its living descendants."""
    total = 0.0
    for member in process_tree(pid):
        try:
            total += cpu_of(member)
        except OSError:  # ended since the listing
            continue
    return total


def rss_of_tree(pid: int) -> int:
    """Resident bytes of a process and its descendants (shared pages counted in each)."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for member in process_tree(pid):
        try:
            total += int((PROC / str(member) / "statm").read_text().split()[1]) * page
        except OSError:
            continue
    return total
