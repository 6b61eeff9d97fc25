"""Whether a server will do: version, role and eviction policy, from one INFO on a fresh connection."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus.errors import ClusterRedirected, InvalidAddress, ReadOnlyReplica, ServerTooOld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.connection import AbstractConnection

    from celery_redis_plus.connection.address import Address

logger = logging.getLogger(__name__)

#: Scripts with flags (allow-oom), BZMPOP and ZMPOP came with Redis 7.0. Valkey reports itself as
#: redis_version 7.2.4.
MINIMUM_VERSION = (7, 0)


class ServerCheck:
    """Checks each server once a process, and remembers what the process has found out of servers.

    This memory is changed by atomic operations without a lock, so that a fork at any moment leaves the child with a usable one.
    Two threads may check the same server twice, which does no harm.

    Attributes:
        missing_replicas: servers that have too few replicas for `wait_replicas`, and when a publish waits for all its time again,
            on `clock`, in seconds (`broker/publishing/replication.py`).
        refusing: the addresses of servers that have refused a write since they took one, as `BrokerAddress.display` has them.
    """

    def __init__(self) -> None:
        self._done: set[str] = set()
        self.missing_replicas: dict[tuple[str, int], float] = {}
        self.refusing: set[str] = set()

    def knows(self, address: Address) -> bool:
        """Return whether this process has found the server good before."""
        return _place(address) in self._done

    def run(self, connection: AbstractConnection, address: Address) -> None:
        """Check the server behind `connection`, unless this process has done so and found it good.

        A user without permission for INFO is let through; the server then answers for itself, command by
        command.

        Raises:
            ClusterRedirected: a node of a Redis Cluster.
            InvalidAddress: a Sentinel.
            ServerTooOld: older than Redis 7.0 or Valkey 7.2.
            ReadOnlyReplica: a replica that takes no writes.
        """
        if self.knows(address):
            return
        connection.send_command("INFO")
        try:
            reply = connection.read_response(disable_decoding=True)
        except ResponseError as exc:  # NOPERM, or a renamed command
            logger.debug("%s: cannot check the server's version, INFO is refused: %s", address.display(), exc)
        else:
            examine(parse_info(reply), address)
        self._done.add(_place(address))


def _place(address: Address) -> str:
    """Return the server, as the kind for which it was checked: a node for a cluster only, a port with TLS or without."""
    return f"{'' if address.cluster is None else 'cluster '}{'' if address.tls is None else 'tls '}{address.server}"


def parse_info(reply: bytes | str) -> dict[str, str]:
    """Return the fields of an INFO reply."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def kind_and_version(info: Mapping[str, str]) -> tuple[str, str]:
    """Return `Redis` or `Valkey`, and its version. Valkey also has the version of Redis that it is compatible with."""
    if "valkey_version" in info:
        return "Valkey", info["valkey_version"]
    return "Redis", info.get("redis_version", "of an unknown version")


def examine(info: Mapping[str, str], address: Address) -> None:
    """Raise or warn about what `info` says of the server at `address`. See `ServerCheck.run`."""
    _examine_mode(info, address)
    _examine_version(info, address)
    _examine_role(info, address)
    _examine_eviction(info, address)


def _examine_mode(info: Mapping[str, str], address: Address) -> None:
    """Refuse what answers INFO, and cannot store messages: a node of a cluster takes only the keys of its own slots."""
    mode = info.get("redis_mode", info.get("server_mode", "standalone"))
    if mode == "sentinel":
        raise InvalidAddress(
            f"{address.display()}: a Sentinel answers here, which stores nothing. What to do: write "
            f"redisplus+sentinel://{address.server}/{address.db}?master_name=NAME in broker_url, or the address of the primary"
        )
    if address.cluster is None and (mode == "cluster" or info.get("cluster_enabled") == "1"):
        raise ClusterRedirected(
            f"{address.display()}: the server is a node of a Redis Cluster. What to do: write "
            f"redisplus+cluster://{address.server}/0 in broker_url, or redispluss+cluster:// for TLS"
        )


def _examine_version(info: Mapping[str, str], address: Address) -> None:
    text = info.get("redis_version", "")
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if numbers is None:
        logger.debug("%s: INFO has no version: %r", address.display(), text)
    elif (int(numbers[1]), int(numbers[2])) < MINIMUM_VERSION:
        raise ServerTooOld(
            f"{address.display()}: the server has version {text}, and this transport needs Redis 7.0 or "
            "Valkey 7.2 at least. What to do: upgrade the server, or give the address of a newer one in "
            "broker_url"
        )


def _examine_role(info: Mapping[str, str], address: Address) -> None:
    if info.get("role") != "slave":
        return
    if info.get("slave_read_only", "1") == "1":
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        raise ReadOnlyReplica(
            f"{address.display()}: the server is a read-only replica of {primary}. What to do: point broker_url at the primary"
        )
    logger.warning(
        "%s: the server is a writable replica: what is written here is LOST at its next synchronisation. "
        "Point broker_url at the primary.",
        address.display(),
    )


def _examine_eviction(info: Mapping[str, str], address: Address) -> None:
    """Warn when the server may delete our keys to free memory, which it does only with a `maxmemory` above 0.

    `allkeys-*` takes any key: messages would vanish without a trace. `volatile-*` takes keys with a TTL: the
    memory of recent publishes (a retried publish could be doubled), a large body on its way into a queue (its
    publish fails), and reply and other transient queues.
    """
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory", "0") == "0":
        return
    if policy.startswith("volatile-"):
        harm = "it may delete transient queues (replies) and forget recent publishes, so that retries double"
    else:
        harm = "IT WILL DELETE WAITING MESSAGES when memory runs short"
    logger.warning(
        "%s: the server's maxmemory-policy is %s: %s. What to do: CONFIG SET maxmemory-policy noeviction.",
        address.display(),
        policy,
        harm,
    )
