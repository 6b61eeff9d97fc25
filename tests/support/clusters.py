"""Starts a Redis Cluster, primaries with replicas, on free ports of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from celery_redis_plus.connection.cluster_address import SLOTS, one_slot_prefix, slot_of
from celery_redis_plus.testing.server import HOST, EmbeddedServer
from tests.support.ports import free_port
from tests.support.promotions import seconds_until_consumers_are_back
from tests.support.servers import server_program
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

#: Milliseconds after which a node takes a silent one for down.
NODE_TIMEOUT_MS = 1_000
#: How often a failover by command is asked for.
FAILOVER_TRIES = 3


@dataclass(frozen=True, slots=True)
class Described:
    """A node, as a line of CLUSTER NODES has it."""

    id: str
    port: int
    flags: frozenset[str]
    #: The id of its primary; `-` for a primary.
    primary: str
    epoch: int
    slots: tuple[str, ...]

    def owns(self, slot: int) -> bool:
        """Return whether the slot is its own."""
        ranges = (text.partition("-") for text in self.slots if not text.startswith("["))
        return any(int(first) <= slot <= int(last or first) for first, _, last in ranges)


class ClusterNode(EmbeddedServer):
    """One node. It keeps in its directory what it knows of the others, and finds them there after a restart."""

    def __init__(self, config: Mapping[str, str], program: Path | None = None) -> None:
        super().__init__(config={"cluster-enabled": "yes", **config}, binary=program or server_program())

    def _launch(self, port: int) -> None:
        if not self.port:
            # The default, 10,000 above the port, may be none.
            self.config["cluster-port"] = str(free_port())
            if self.speaks_tls:
                self.config["tls-port"] = str(free_port())
        super()._launch(port)

    @property
    def speaks_tls(self) -> bool:
        """Whether it has a port for TLS beside its own."""
        return "tls-cert-file" in self.config

    @property
    def link_port(self) -> int:
        """The port by which the nodes know it."""
        port = self.config["tls-port"] if self.speaks_tls else self.port
        assert not isinstance(port, tuple)
        return int(port)

    def ask(self, *command: Any) -> Any:
        """Return its answer to a command."""
        with self.client() as client:
            return client.execute_command(*command)

    def known(self) -> dict[int, Described]:
        """Return the nodes that it knows, by their ports."""
        found = {}
        for line in self.ask("CLUSTER", "NODES").decode().splitlines():
            name, place, flags, primary, _, _, epoch, _, *slots = line.split()
            port = int(place.partition("@")[0].rpartition(":")[2])
            found[port] = Described(name, port, frozenset(flags.split(",")), primary, int(epoch), tuple(slots))
        return found

    def myself(self) -> Described:
        """Return how it sees itself."""
        return next(one for one in self.known().values() if "myself" in one.flags)

    def state(self) -> dict[str, str]:
        """Return what CLUSTER INFO says."""
        lines = self.ask("CLUSTER", "INFO").decode().split()
        return dict(line.split(":", 1) for line in lines)


class RunningCluster:
    """A cluster. `prefix` is the `global_keyprefix` of the broker that tests look at."""

    def __init__(self, nodes: list[ClusterNode], *, prefix: str = "") -> None:
        self.nodes = nodes
        self.prefix = one_slot_prefix(prefix)
        self.slot = slot_of(self.prefix)

    def url(self, db: int = 0, scheme: str = "redisplus", *, user: str = "") -> str:
        """Return `redisplus+cluster://h1:p1;h2:p2/0`, of the first three nodes."""
        hosts = ";".join(f"{HOST}:{node.link_port}" for node in self.nodes[:3])
        return f"{scheme}+cluster://{user}{hosts}/{db}"

    @property
    def owner(self) -> ClusterNode:
        """The node that says of itself that it owns the broker's slot; of several, the newest."""
        claims = {node: node.myself() for node in self.nodes if node.running}
        owners = [node for node, claim in claims.items() if "master" in claim.flags and claim.owns(self.slot)]
        assert owners, claims
        return max(owners, key=lambda node: claims[node].epoch)

    def client(self) -> redis.Redis:
        """Return a new client of the owner; the caller closes it."""
        return self.owner.client()

    def replica(self) -> ClusterNode:
        """Return a replica of the owner."""
        owner = self.owner.myself()
        return next(node for node in self.nodes if node.running and node.myself().primary == owner.id)

    def failover(self) -> ClusterNode:
        """Let a replica of the owner take over in order, and return it. A replica gives up after 5 s, then it is asked again."""
        replica = self.replica()
        for _ in range(FAILOVER_TRIES):
            with suppress(redis.ResponseError):
                replica.ask("CLUSTER", "FAILOVER")
            with suppress(TimeoutError):
                wait_until(lambda: self.owner is replica, 10, interval_s=0.01)
                return replica
        raise TimeoutError(f"no failover: {replica.log()[-3000:]}")

    def crash(self) -> ClusterNode:
        """End the owner with SIGKILL, wait until the others have promoted its replica, and return that one."""
        before, replica = self.owner, self.replica()
        before.kill()

        def is_promoted() -> bool:
            claim = replica.myself()
            return "master" in claim.flags and claim.owns(self.slot)

        wait_until(is_promoted, 30, replica.log, interval_s=0.01)
        return replica

    def other_primary(self) -> ClusterNode:
        """Return a primary that does not own the broker's slot."""
        owner = self.owner
        return next(node for node in self.nodes if node.running and node is not owner and "master" in node.myself().flags)

    def migrate_key_by_key(self, *, pause_s: float = 0.0) -> ClusterNode:
        """Move the broker's slot to another primary as `redis-cli --cluster reshard` does, and return that one."""
        source, target = self.owner, self.other_primary()
        source_id, target_id = source.myself().id, target.myself().id
        target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target_id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 10):
            for key in keys:
                source.ask("MIGRATE", HOST, target.link_port, key, 0, 5000)
                time.sleep(pause_s)
        for node in (target, source, *(node for node in self.nodes if node.running and node not in {source, target})):
            if "master" in node.myself().flags:
                node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", target_id)
        return target

    @contextmanager
    def halfway(self) -> Iterator[None]:
        """Begin to move the slot to another primary, key by key, and leave it so until the end; then it stays where it was."""
        source, target = self.owner, self.other_primary()
        target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source.myself().id)
        source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target.myself().id)
        try:
            yield
        finally:
            for node in (source, target):
                node.ask("CLUSTER", "SETSLOT", self.slot, "STABLE")

    def migrate_at_once(self) -> ClusterNode:
        """Move the slot as Valkey 9 does: it is copied while it is used, and changes its owner in one moment."""
        source, target = self.owner, self.other_primary()
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", target.myself().id)
        wait_until(lambda: self.owner is target, 30, lambda: source.ask("CLUSTER", "GETSLOTMIGRATIONS"), interval_s=0.01)
        return target

    @property
    def migrates_at_once(self) -> bool:
        """Whether its servers can move a slot so."""
        return any(line.startswith(b"MIGRATESLOTS") for line in self.nodes[0].ask("CLUSTER", "HELP"))

    def flush(self) -> None:
        """Empty all nodes."""
        for node in self.nodes:
            if node.running and "master" in node.myself().flags:
                node.ask("FLUSHALL")

    def seconds_until_consumers_are_back(self, moved_at: float, timeout_s: float = 30.0) -> float:
        """Return how many seconds after a moment of the wall clock a consumer works at the primary."""
        return seconds_until_consumers_are_back(self.client, self.prefix, moved_at, timeout_s)

    def wait_until_whole(self, timeout_s: float = 60.0) -> None:
        """Return when a failover may come: all nodes run and agree, and each primary has a replica that is in step."""
        for node in self.nodes:
            node.start()
        wait_until(self._is_whole, timeout_s, lambda: [node.ask("CLUSTER", "NODES") for node in self.nodes], interval_s=0.05)

    def _is_whole(self) -> bool:
        views = [node.known() for node in self.nodes]
        agreed = {frozenset((one.id, one.primary, one.slots) for one in view.values()) for view in views}
        troubled = any({"fail", "fail?", "handshake", "noaddr"} & one.flags for view in views for one in view.values())
        return (
            len(agreed) == 1
            and len(views[0]) == len(self.nodes)
            and not troubled
            and all(node.state()["cluster_state"] == "ok" and self._is_in_step(node) for node in self.nodes)
        )

    @staticmethod
    def _is_in_step(node: ClusterNode) -> bool:
        role, *rest = node.ask("ROLE")
        return bool(role == b"master" or rest[2] == b"connected")


@contextmanager
def running_cluster(
    *,
    primaries: int = 3,
    replicas: int = 3,
    prefix: str = "",
    config: Mapping[str, str] | None = None,
    program: Path | None = None,
) -> Iterator[RunningCluster]:
    """Start a cluster, and wait until all of its nodes agree.

    Args:
        primaries: how many; they share the slots.
        replicas: how many, of the primaries in turn.
        prefix: the `global_keyprefix` of the broker that the test looks at.
        config: directives of all nodes. program: the server; with the directives of TLS, one that is built with it.
    """
    common = {
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-replica-validity-factor": "0",
        "cluster-allow-replica-migration": "no",
        "repl-diskless-sync-delay": "0",
        **(config or {}),
    }
    with ExitStack() as stack:
        nodes = [stack.enter_context(ClusterNode(common, program)) for _ in range(primaries + replicas)]
        first, *others = nodes
        size = SLOTS / primaries
        for number, node in enumerate(nodes[:primaries]):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", round(number * size), round((number + 1) * size) - 1)
        for node in others:
            node.ask("CLUSTER", "MEET", HOST, first.link_port, first.config["cluster-port"])
        cluster = RunningCluster(nodes, prefix=prefix)
        for number, node in enumerate(nodes[primaries:]):
            primary = nodes[number % primaries]
            wanted = primary.myself().id
            # While the two shake hands, it knows the primary by another id.
            wait_until(lambda: any(one.id == wanted for one in node.known().values()), 30, node.log, interval_s=0.02)  # noqa: B023 - called at once
            node.ask("CLUSTER", "REPLICATE", wanted)
        cluster.wait_until_whole()
        yield cluster
