"""The checks of the server itself: version, what it keeps on disk and on replicas, memory, clients, scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery_redis_plus.admin.diagnosis.finding import ADVICE, DANGER, OK, UNKNOWN, Finding
from celery_redis_plus.admin.formatting import size, span
from celery_redis_plus.connection.server_check import kind_and_version

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker

#: Parts of the memory from which on there is advice, and danger.
MEMORY_ADVICE, MEMORY_DANGER = 0.75, 0.9
#: The same of the clients.
CLIENTS_ADVICE, CLIENTS_DANGER = 0.75, 0.9
#: Seconds of the setting `timeout` below which idle connections cost many signs of life.
LEAST_TIMEOUT_S = 60
#: Bytes that a replica may be behind.
REPLICA_LAG_ADVICE = 10_000_000
#: Scripts on the server. This package brings about 70; a program that puts values into the text of its scripts makes thousands.
SCRIPTS_ADVICE = 1_000


def server(broker: ExaminedBroker) -> Iterator[Finding]:
    """Kind, version and mode of the server."""
    kind, version = kind_and_version(broker.info)
    up = span(broker.number("uptime_in_seconds"))
    text = f"{kind} {version}, up {up}"
    yield Finding("server", OK, text, values={"kind": kind, "version": version, "uptime_s": broker.number("uptime_in_seconds")})


def persistence(broker: ExaminedBroker) -> Iterator[Finding]:
    """What a crash of the server loses: append-only file, snapshots, and whether they can be written."""
    info, settings = broker.info, broker.settings
    broken = [
        name for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") != "ok"
    ]  # fmt: skip
    if broken:
        text = f"the server could not write to its disk: {', '.join(broken)}"
        yield Finding("persistence", DANGER, text, "Free space on the disk, and read the server's log: it may refuse publishes.")
    fsync = settings.get("appendfsync", "")
    values: dict[str, Any] = {"aof": info.get("aof_enabled") == "1", "appendfsync": fsync or None, "save": settings.get("save")}
    if values["aof"]:
        if fsync == "no":
            advice = "Set appendfsync to everysec: the operating system may keep half a minute of messages in memory."
            yield Finding("persistence", ADVICE, "append-only file without fsync", advice, values)
        else:
            yield Finding("persistence", OK, f"append-only file, fsync {fsync or 'unknown: CONFIG is refused'}", "", values)
        return
    yield _without_aof(broker, values)


def _without_aof(broker: ExaminedBroker, values: dict[str, Any]) -> Finding:
    if values["save"] == "":
        text = "nothing is written to disk: a restart of the server loses all messages"
        return Finding("persistence", DANGER, text, "Set appendonly to yes.", values)
    age = max(0, broker.number("server_time_usec") // 1_000_000 - broker.number("rdb_last_save_time"))
    values = {**values, "last_snapshot_s": age, "changes_since": broker.number("rdb_changes_since_last_save")}
    text = f"only snapshots, the last one {span(age)} ago: a crash loses all changes since, {values['changes_since']:,} now"
    return Finding("persistence", DANGER, text, "Set appendonly to yes, and appendfsync to everysec.", values)


def eviction(broker: ExaminedBroker) -> Iterator[Finding]:
    """Whether the server may delete keys: `maxmemory-policy` must be `noeviction`."""
    policy, limit = broker.info.get("maxmemory_policy", "noeviction"), broker.number("maxmemory")
    values = {"policy": policy, "evicted_keys": broker.number("evicted_keys")}
    remedy = "Run CONFIG SET maxmemory-policy noeviction, and write it into the server's configuration."
    if policy == "noeviction":
        yield Finding("eviction", OK, "maxmemory-policy is noeviction", "", values)
    elif limit == 0:
        text = f"maxmemory-policy is {policy}, without effect as long as maxmemory is 0"
        yield Finding("eviction", ADVICE, text, remedy, values)
    elif policy.startswith("volatile-"):
        text = f"maxmemory-policy is {policy}: the server may delete replies and forget publishes, so that retries double"
        yield Finding("eviction", DANGER, text, remedy, values)
    else:
        text = f"maxmemory-policy is {policy}: the server deletes waiting messages when memory runs short"
        yield Finding("eviction", DANGER, text, remedy, values)


def memory(broker: ExaminedBroker) -> Iterator[Finding]:
    """How much memory is left: of `maxmemory`, else of the host."""
    used, limit = broker.number("used_memory"), broker.number("maxmemory")
    whole = limit or broker.number("total_system_memory")
    values = {"used_bytes": used, "maxmemory_bytes": limit, "whole_bytes": whole}
    if not whole:
        yield Finding(
            "memory", ADVICE, f"{size(used)} in use, and no maxmemory", "Set maxmemory below the host's memory.", values
        )
        return
    part = used / whole
    text = f"{size(used)} of {size(whole)} {'maxmemory' if limit else 'of the host'} in use ({part:.0%})"
    level = DANGER if part >= MEMORY_DANGER else ADVICE if part >= MEMORY_ADVICE else OK
    advice = ""
    if level != OK:
        advice = "Add workers or memory, or limit queues (x-max-length): a full server refuses publishes."
    elif not limit:
        level, advice = ADVICE, "Set maxmemory: without it the operating system ends a server that grows too large."
    yield Finding("memory", level, text, advice, values)


def clients(broker: ExaminedBroker) -> Iterator[Finding]:
    """How many more connections the server takes."""
    connected, limit = broker.number("connected_clients"), broker.number("maxclients")
    rejected = broker.number("rejected_connections")
    values = {"connected": connected, "maxclients": limit, "rejected_connections": rejected}
    part = connected / limit if limit else 0
    level = DANGER if part >= CLIENTS_DANGER else ADVICE if part >= CLIENTS_ADVICE or rejected else OK
    text = f"{connected:,} connection(s)" + (f" of {limit:,}" if limit else "")
    text += f"; {rejected:,} were refused since the server's start" if rejected else ""
    yield Finding("clients", level, text, "Raise maxclients, or run fewer processes." if level != OK else "", values)


def idle_timeout(broker: ExaminedBroker) -> Iterator[Finding]:
    """Whether the server closes connections without traffic, by its setting `timeout`."""
    text = broker.settings.get("timeout")
    timeout_s = int(text) if text else 0
    values = {"timeout_s": None if text is None else timeout_s}
    if text is None:
        yield Finding("idle-timeout", OK, "CONFIG is refused; consumers keep their connections alive", "", values)
    elif 0 < timeout_s < LEAST_TIMEOUT_S:
        told = f"connections without traffic are closed after {timeout_s} s: consumers send many signs of life, others reconnect"
        yield Finding("idle-timeout", ADVICE, told, f"Set timeout to 0, or to {LEAST_TIMEOUT_S} at least.", values)
    else:
        end = f"are closed after {timeout_s} s" if timeout_s else "stay open"
        yield Finding("idle-timeout", OK, f"connections without traffic {end}", "", values)


def replication(broker: ExaminedBroker) -> Iterator[Finding]:
    """Whether there are as many replicas as server and `wait_replicas` want."""
    wanting = _too_few_good_replicas(broker)
    if wanting is not None:
        yield wanting
        if wanting.level == DANGER:
            return
    wanted, offset = broker.options.wait_replicas, broker.number("master_repl_offset")
    replicas = [dict(pair.split("=", 1) for pair in text.split(",")) for name, text in broker.info.items() if _is_replica(name)]
    online = [one for one in replicas if one.get("state") == "online"]
    behind = max((offset - int(one.get("offset", offset)) for one in online), default=0)
    counted = {"replicas": len(replicas), "online": len(online), "behind_bytes": behind, "wait_replicas": wanted}
    values = {**counted, **_good_replicas(broker)}
    text = f"{len(online)} of {len(replicas)} replicas in sync" if replicas else "no replicas"
    if len(online) < wanted:
        text += f", and wait_replicas is {wanted}: no publish is confirmed"
        yield Finding("replication", DANGER, text, "Mend the replicas, or lower wait_replicas.", values)
    elif len(online) < len(replicas) or behind > REPLICA_LAG_ADVICE:
        text += f", the slowest {size(behind)} behind" if online else ""
        yield Finding("replication", ADVICE, text, "Look at the replicas' logs, and at the network between them.", values)
    elif replicas and not wanted:
        advice = "With wait_replicas=1 a publish waits until a replica has the message."
        yield Finding("replication", OK, f"{text}; a failover may lose messages of the last moment", advice, values)
    elif wanted < len(replicas):
        text += f", and wait_replicas is {wanted}: a failover on command may promote one that lacks confirmed messages"
        yield Finding("replication", ADVICE, text, f"With wait_replicas={len(replicas)} such a failover loses none.", values)
    else:
        yield Finding("replication", OK, text, "", values)


def _good_replicas(broker: ExaminedBroker) -> dict[str, int | None]:
    """Return how many good replicas the server has and demands for a write; None where it does not tell, {} if it demands none.

    A good one has answered within `min-replicas-max-lag`. INFO has the field only where both settings are above 0 (`server.c` of
    Redis 7.0 and Valkey 9). `min-slaves-to-write` is the same setting.
    """
    if "min_slaves_good_slaves" not in broker.info:
        return {}
    demanded = broker.settings.get("min-replicas-to-write")
    return {
        "good_replicas": broker.number("min_slaves_good_slaves"),
        "min_replicas_to_write": None if demanded is None else int(demanded),
    }


def _too_few_good_replicas(broker: ExaminedBroker) -> Finding | None:
    values = _good_replicas(broker)
    good, demanded = values.get("good_replicas"), values.get("min_replicas_to_write")
    # Without any good one it does not matter how many are demanded.
    if good is None or (demanded is not None and good >= demanded):
        return None
    if demanded is None and good:
        text = f"min-replicas-to-write is set, CONFIG is refused: {good} good replica(s) may be too few"
        return Finding("replication", UNKNOWN, text, "Ask with a user that may, see docs/access.md.", values)
    setting = f"min-replicas-to-write is {'set' if demanded is None else demanded}"
    text = f"the server refuses publishes: {setting}, with {good} good replica(s)"
    return Finding("replication", DANGER, text, "Mend the replicas, or lower min-replicas-to-write.", values)


def _is_replica(name: str) -> bool:
    return name.startswith("slave") and name.removeprefix("slave").isdigit()


def scripts(broker: ExaminedBroker) -> Iterator[Finding]:
    """How many scripts the server keeps in memory until it restarts."""
    count, taken = broker.number("number_of_cached_scripts"), broker.number("used_memory_scripts")
    values = {"scripts": count, "bytes": taken}
    text = f"{count:,} scripts, {size(taken)}"
    if count < SCRIPTS_ADVICE:
        yield Finding("scripts", OK, text, "", values)
        return
    advice = "Another program puts values into the text of its scripts: let it pass them as arguments, then run SCRIPT FLUSH."
    yield Finding("scripts", ADVICE, text, advice, values)
