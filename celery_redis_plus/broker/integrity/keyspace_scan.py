"""Looks through the key space: which queues, exchanges and self-expiring keys a database has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.keys import QUEUE_KINDS, STAGED, decode_name

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import KeyParts, Keys

#: Tags kept of each queue: they tell what a queue was whose record has vanished.
SAMPLES = 20


@dataclass(slots=True)
class KeyspaceScan:
    """What a database has."""

    #: Queue -> some of its messages' tags.
    queues: dict[str, list[bytes]] = field(default_factory=dict)
    exchanges: set[str] = field(default_factory=set)
    #: Keys that have to expire by themselves, with their owners' names.
    expiring: dict[bytes, str] = field(default_factory=dict)

    def note(self, key: bytes, parts: KeyParts) -> None:
        """Take down one key."""
        if parts.kind in QUEUE_KINDS:
            tags = self.queues.setdefault(parts.name, [])
            if parts.kind == "message":
                if parts.rest.startswith(STAGED):
                    self.expiring[key] = parts.name
                elif len(tags) < SAMPLES:
                    tags.append(parts.rest)
        elif parts.kind in {"producer", "client_wakeup"}:
            self.expiring[key] = parts.name
        elif parts.kind == "binding":
            self.exchanges.add(parts.name)


def survey(commands: CommandConnection, keys: Keys) -> KeyspaceScan:
    """Look through all keys, and through the lists of queues and exchanges."""
    found = KeyspaceScan()
    for page in scan(commands, keys):
        for key, parts in page:
            found.note(key, parts)
    for name in commands.command("ZRANGE", keys.queues, 0, -1):
        found.queues.setdefault(decode_name(name), [])
    found.exchanges.update(decode_name(name) for name in commands.command("HKEYS", keys.exchanges))
    return found


def scan(commands: CommandConnection, keys: Keys) -> Iterator[list[tuple[bytes, KeyParts]]]:
    """Yield the keys that are ours, a page at a time; some may come twice."""
    for page in scan_keys(commands, keys.pattern):
        yield [(key, parts) for key in page if (parts := keys.parts(key)) is not None]
