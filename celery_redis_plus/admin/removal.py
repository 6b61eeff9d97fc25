"""Removes all that a broker has stored: its keys are counted by kind, and deleted in short steps."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.queues.audit import current_actor
from celery_redis_plus.connection.scans import scan_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redis_plus.broker.consumers.processes import ProcessRecord
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Type of a key -> the kinds that have it. `moving` and `taken` are of migrations, beside kombu's keys.
KINDS: Final = {
    "hash": (
        *("binding", "consumer", "events_meta", "events_readers", "exchanges", "fanout", "leader", "leaving_message"),
        *("leaving_shard", "limiter_rules", "message", "meta", "policies", "processes", "shards_raise", "subscriber", "track"),
    ),
    "zset": (
        *("client_wakeup", "consumers", "cursors", "dead", "dead_subscribers", "delayed", "dlx_outbox", "expiry", "group_times"),
        *("groups", "heartbeats", "held", "limited", "limited_until", "limiter_places", "limiter_queues", "limiter_window"),
        *("limiters", "messages_index", "migrated", "moved_in", "queue", "queues", "schedule_wakeup", "subscribers"),
        *("sweep_wakeup", "taken", "tracks", "trash", "waiting_publishers", "wakeup", "with_credit"),
    ),
    "string": ("database_id", "dedup", "event_index", "limiter_bucket", "producer", "queue_ids", "task_index"),
    "list": ("leaving", "moving"),
    "stream": ("audit", "events", "stream", "track_events"),
    "set": ("always_swept", "event_logs"),
}
TYPES: Final = {kind: type_ for type_, kinds in KINDS.items() for kind in kinds}
#: Kinds that are one key a broker, spelled without a tag in braces. Other keys of a whole name such as `dead` are not ours.
WHOLE_NAMES: Final = frozenset(
    (
        *("always_swept", "database_id", "event_logs", "exchanges", "limiter_queues", "limiter_rules", "limiters"),
        *("moving", "policies", "queue_ids", "queues", "shards_raise", "sweep_wakeup", "taken", "tracks"),
    )
)
#: Keys that one command deletes. Their memory is freed by another thread of the server (UNLINK).
DELETED_A_CALL: Final = 250
#: Kinds that come last: by `fanout` the streams are found, and the mark tells other processes of the loss.
LAST: Final = frozenset({"fanout", "database_id"})


class Removal:
    """The keys of one broker over one connection. All methods raise as `CommandConnection.call` does."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys
        self.prefix = keys.prefix
        #: Keys that have a name of ours and hold something else: they stay.
        self.foreign = 0

    def living(self) -> list[ProcessRecord]:
        """Return the processes that consume. Those that only publish are not known."""
        return Processes(self._commands, self._keys, delivery_limit=None, dead_letter_max=0).living()

    def count(self) -> dict[str, int]:
        """Return how many keys there are of each kind; what comes and goes meanwhile may be missed, or counted twice."""
        found: Counter[str] = Counter()
        self.foreign = 0
        for page in self._pages():
            found.update(kind for _, kind in page)
        return dict(sorted(found.items()))

    def delete(self, progress: Callable[[int], object] = lambda _: None) -> int:
        """Delete them; return how many there were. `progress` is told of each step. Cut short, another call does the rest."""
        deleted = 0
        last: list[bytes] = []
        for page in self._pages():
            last += [key for key, kind in page if kind in LAST]
            deleted += self._unlink([key for key, kind in page if kind not in LAST], progress)
        deleted += self._unlink(last, progress)
        # No entry of the audit log, which is gone with the rest.
        logger.warning("%d keys under the prefix %r are deleted, by %s", deleted, self.prefix, current_actor())
        return deleted

    def _unlink(self, keys: list[bytes], progress: Callable[[int], object]) -> int:
        deleted = 0
        for at in range(0, len(keys), DELETED_A_CALL):
            count = int(self._commands.command("UNLINK", *keys[at : at + DELETED_A_CALL]))
            progress(count)
            deleted += count
        return deleted

    def _kind(self, key: bytes) -> str | None:
        kind = self._keys.kind(key)
        return kind if kind in TYPES and (kind in WHOLE_NAMES or self._keys.parts(key) is not None) else None

    def _pages(self) -> Iterator[list[tuple[bytes, str]]]:
        """Yield keys that are ours, each with its kind, a page at a time."""
        for found in scan_keys(self._commands, self._keys.any):
            named = [(key, kind) for key in found if (kind := self._kind(key)) is not None]
            streams = [(self._keys.stream_of(key), "stream") for key, kind in named if kind == "fanout"]
            asked = [*named, *streams]
            types = self._commands.ask([("TYPE", key) for key, _ in asked])
            ours = [one for one, type_ in zip(asked, types, strict=True) if type_ == TYPES[one[1]].encode()]
            self.foreign += len([type_ for type_ in types[: len(named)] if type_ != b"none"]) - sum(
                kind != "stream" for _, kind in ours
            )
            yield ours
