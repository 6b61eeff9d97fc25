"""The queues that a process consumes, as its maintenance tasks need to know them, and how they were when that was asked last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.connection.forks import lock_of

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer, SeenQueue

#: Seconds for which counts what the last look at the list of consumers has told of a queue: it comes every 20 s by default.
SEEN_S = 25.0


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """A queue with at least one user in this process."""

    name: str
    #: Life of the unused queue in ms; None: it is a lasting one, as far as this process knows.
    ttl_ms: int | None
    #: Who uses it: consumers, and sessions that get messages one at a time.
    users: frozenset[str]
    consumers: tuple[Consumer, ...] = field(default=())
    #: It has had a record while it was consumed: where that is missing, the queue is gone. Else it was never declared.
    declared: bool = False
    #: Id of the record by whose arguments it is consumed; empty where that is not known.
    record_id: bytes = b""


class ConsumedQueues:
    """What is consumed here; changed by channels, read by the maintenance tasks."""

    def __init__(self) -> None:
        """Start empty."""
        self._queues: dict[str, ConsumedQueue] = {}
        self._lock = lock_of(self)
        #: What the last look at the list of its consumers has told of each queue that has some here.
        self.seen: dict[str, SeenQueue] = {}
        #: Counts changes, so that a maintenance task sees that it has to look again.
        self.version = 0
        #: Called, from any thread, after a change.
        self.on_change: Callable[[], None] = lambda: None

    def add(
        self, queue: str, user: str, ttl_ms: int | None, consumer: Consumer | None = None, *, record_id: bytes = b""
    ) -> None:  # fmt: skip
        """Note that `user` uses `queue`, whose record has this id; `consumer` is the user as the server lists it."""
        with self._lock:
            known = self._queues.get(queue) or ConsumedQueue(queue, ttl_ms, frozenset())
            consumers = tuple(one for one in known.consumers if one.id != user)
            self._queues[queue] = ConsumedQueue(
                queue,
                ttl_ms,
                known.users | {user},
                consumers if consumer is None else (*consumers, consumer),
                bool(record_id) or known.declared,
                # Another consumer may know of older arguments.
                known.record_id or record_id,
            )
            self.version += 1
        self.on_change()

    def remove(self, queue: str, user: str) -> bool:
        """Note that `user` is gone; return whether it was the last one here."""
        with self._lock:
            known = self._queues.get(queue)
            if known is None or user not in known.users:
                return False
            left = known.users - {user}
            self.version += 1
            consumers = tuple(one for one in known.consumers if one.id != user)
            if left:
                self._queues[queue] = replace(known, users=left, consumers=consumers)
            else:
                del self._queues[queue]
            if not consumers:
                self.seen.pop(queue, None)
        self.on_change()
        return not left

    def redeclared(self, queue: str, ttl_ms: int | None, record_id: bytes = b"") -> None:
        """Note that a consumed queue was declared again, or has new arguments, and tell its consumers."""
        with self._lock:
            known = self._queues.get(queue)
            if known is None:
                return
            self._queues[queue] = replace(known, ttl_ms=ttl_ms, declared=True, record_id=record_id)
            self.version += 1
        for consumer in known.consumers:
            consumer.on_redeclared()
        self.on_change()

    def deleted(self, queue: str) -> None:
        """Note that a consumed queue was deleted, and tell its consumers."""
        known = self._set_declared(queue, declared=False)
        for consumer in known.consumers if known is not None else ():
            consumer.on_deleted()

    def note_declared(self, queue: str) -> None:
        """Note that a consumed queue has a record."""
        if queue in self._queues and not self._queues[queue].declared:
            self._set_declared(queue, declared=True)

    def _set_declared(self, queue: str, *, declared: bool) -> ConsumedQueue | None:
        with self._lock:
            known = self._queues.get(queue)
            if known is not None:
                self._queues[queue] = replace(known, declared=declared)
            return known

    def note_seen(self, queue: str, seen: SeenQueue) -> None:
        """Note how a queue was when its consumers were looked for."""
        with self._lock:
            known = self._queues.get(queue)
            if known is not None and known.consumers:
                self.seen[queue] = seen

    def consumers_of(self, queue: str) -> int:
        """Return how many consumers of all processes look after a queue, 0 where that is unknown, or none does here."""
        seen = self.seen.get(queue)
        return 0 if seen is None else seen.consumers

    def seen_lately(self, queue: str) -> SeenQueue | None:
        """Return what was seen of a queue within `SEEN_S`, None where nothing was."""
        seen = self.seen.get(queue)
        return seen if seen is not None and clock.now_s() - seen.at < SEEN_S else None

    def get(self, queue: str) -> ConsumedQueue | None:
        """Return a queue, None where it is not consumed."""
        return self._queues.get(queue)

    def all(self) -> list[ConsumedQueue]:
        """Return the consumed queues."""
        return list(self._queues.values())

    def __len__(self) -> int:
        """Return how many queues are consumed."""
        return len(self._queues)
