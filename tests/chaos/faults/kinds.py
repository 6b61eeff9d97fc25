"""All kinds of faults, and how often each strikes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.faults import clocks, data, failovers, network, processes, server

if TYPE_CHECKING:
    import random

    from tests.chaos.storm import Storm

PREFORK = ("prefork",)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        strike: does it.
        short, full: how often it strikes each pool in the short form, and in the full one.
        weight: its share of a run by the clock or by a number of faults.
        lasts: it goes on while others strike.
        partition: it is one of the network.
        deployment: it strikes Sentinels and clusters only, and `short` times each of them.
        pools: those it makes sense with; none are all.
    """

    strike: Callable[[Storm], bool]
    short: int
    full: int
    weight: int
    lasts: bool = False
    partition: bool = False
    deployment: bool = False
    pools: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "kill_worker": Kind(processes.kill_worker, 3, 102, 40),
    "kill_main": Kind(processes.kill_main, 1, 12, 20, pools=PREFORK),
    "kill_child": Kind(processes.kill_child, 1, 20, 30, pools=PREFORK),
    "stop_worker": Kind(processes.stop_worker, 1, 8, 8, lasts=True),
    "freeze_worker": Kind(processes.freeze_worker, 1, 8, 8, lasts=True),
    "stall_maintenance": Kind(processes.stall_maintenance, 1, 8, 8, lasts=True),
    "kill_publisher": Kind(processes.kill_publisher, 1, 8, 8, lasts=True),
    "kill_server": Kind(server.kill_server, 1, 12, 12),
    "restart_server": Kind(server.restart_server, 1, 6, 6),
    "promote_replica": Kind(server.promote_replica, 1, 6, 6),
    "kill_client": Kind(server.kill_client, 2, 30, 20),
    "pause_clients": Kind(server.pause_clients, 1, 6, 8),
    "freeze_server": Kind(server.freeze_server, 1, 6, 6),
    "flush_scripts": Kind(server.flush_scripts, 1, 6, 6),
    "kill_script": Kind(server.kill_script, 1, 6, 6),
    "fill_memory": Kind(server.fill_memory, 1, 6, 6),
    "fill_disk": Kind(server.fill_disk, 1, 6, 8),
    "lose_a_second": Kind(data.lose_a_second, 0, 4, 5),
    "lose_since_snapshot": Kind(data.lose_since_snapshot, 0, 4, 4),
    "promote_lagging": Kind(data.promote_lagging, 0, 4, 6),
    "flush_all": Kind(data.flush_all, 0, 2, 2),
    "step_server_clock": Kind(clocks.step_server_clock, 1, 6, 6),
    "step_worker_clock": Kind(clocks.step_worker_clock, 1, 6, 6),
    "cut_off": Kind(network.cut_off, 1, 4, 6, lasts=True, partition=True),
    "blackhole": Kind(network.blackhole, 1, 6, 6, lasts=True, partition=True),
    "one_way": Kind(network.one_way, 1, 6, 8, lasts=True, partition=True),
    "reset": Kind(network.reset, 1, 6, 10, partition=True),
    "refuse": Kind(network.refuse, 1, 4, 6, partition=True),
    "slow": Kind(network.slow, 1, 3, 4, lasts=True, partition=True),
    "delay": Kind(network.delay, 1, 3, 4, lasts=True, partition=True),
    "lose_replies": Kind(network.lose_replies, 1, 8, 10, partition=True),
    "cut_bytes": Kind(network.cut_bytes, 1, 8, 10, partition=True),
    "fail_over": Kind(failovers.fail_over, 3, 6, 10, deployment=True),
    "crash_primary": Kind(failovers.crash_primary, 3, 6, 10, deployment=True),
}
PARTITIONS = tuple(name for name, kind in KINDS.items() if kind.partition)
#: What strikes beside failovers where nothing is between clients and servers, and no server is the only one.
BESIDE_FAILOVERS = (
    *("kill_worker", "kill_main", "kill_child", "stop_worker", "freeze_worker", "stall_maintenance", "kill_publisher"),
    *("kill_client", "flush_scripts"),
)


def kinds_of(pool: str, *, deployment: bool = False) -> dict[str, Kind]:
    """Return the kinds that make sense with a pool, on one server or on a deployment of several."""
    return {
        name: kind
        for name, kind in KINDS.items()
        if (not kind.pools or pool in kind.pools)
        and (kind.deployment or name in BESIDE_FAILOVERS if deployment else not kind.deployment)
    }


def draw(pool: str, number: int, chooser: random.Random, *, short: bool = False) -> Iterable[str]:
    """Return so many faults, drawn by their weights; of those of the short form only, if it is for that."""
    kinds = {name: kind for name, kind in kinds_of(pool).items() if kind.short or not short}
    return chooser.choices(list(kinds), [kind.weight for kind in kinds.values()], k=number)
