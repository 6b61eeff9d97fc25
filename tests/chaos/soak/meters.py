"""What processes and the server use, by /proc and INFO."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import redis


class Quantity(NamedTuple):
    """What is measured: `growth` is what it may grow by, as a part of what it was, and `least` what it may grow by besides."""

    unit: str
    growth: float
    least: float


MEMORY, DESCRIPTORS, THREADS = "memory", "descriptors", "threads"
SERVER_MEMORY, KEYS = "used memory", "keys"
QUANTITIES = {
    MEMORY: Quantity("MB", 0.05, 3.0),
    DESCRIPTORS: Quantity("", 0.0, 4.0),
    THREADS: Quantity("", 0.0, 3.0),
    SERVER_MEMORY: Quantity("MB", 0.1, 1.0),
    KEYS: Quantity("", 0.1, 50.0),
}


@dataclass(frozen=True)
class Series:
    """How much of a quantity somebody uses: (seconds since the begin, amount), by time."""

    quantity: str
    whose: str
    points: list[tuple[float, float]]


class Meters:
    """Takes samples of processes and of a server."""

    def __init__(self, groups: dict[str, int], client: redis.Redis) -> None:
        """Measure the processes of `groups` (name -> id of the group, which is that of its main process), and the server."""
        self._groups, self._client = groups, client
        self._series: dict[tuple[str, str], Series] = {}

    @property
    def series(self) -> list[Series]:
        """What was measured so far."""
        return list(self._series.values())

    def sample(self, at_s: float) -> None:
        """Measure all. Raises redis.RedisError where the server does not answer."""
        members = _members(self._groups.values())
        for name, group in self._groups.items():
            self._add(MEMORY, name, at_s, sum(map(_memory_mb, members[group])))
            self._add(DESCRIPTORS, name, at_s, len(os.listdir(f"/proc/{group}/fd")))  # noqa: PTH208 - no paths are needed
            self._add(THREADS, name, at_s, len(os.listdir(f"/proc/{group}/task")))  # noqa: PTH208
        self._add(SERVER_MEMORY, "server", at_s, self._client.info("memory")["used_memory"] / 2**20)
        self._add(KEYS, "server", at_s, self._client.dbsize())

    def _add(self, quantity: str, whose: str, at_s: float, amount: float) -> None:
        series = self._series.setdefault((quantity, whose), Series(quantity, whose, []))
        series.points.append((at_s, amount))


def _members(groups: Iterable[int]) -> dict[int, list[int]]:
    """Return the processes of each group. Source: proc_pid_stat(5)."""
    found: dict[int, list[int]] = {group: [] for group in groups}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                group = int((path / "stat").read_text().rpartition(")")[2].split()[2])
                if group in found:
                    found[group].append(int(path.name))
    return found


def _memory_mb(pid: int) -> float:
    """Return what a process has to itself: pool processes share most of their memory with their parent."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
