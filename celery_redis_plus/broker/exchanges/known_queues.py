"""What a process has read of queues' records. An entry carries the record's id, so that an old one is noticed.

A queue that is deleted and declared again has another id, and so has one whose record was only assumed and is replaced by its
first declaration (`lua/declare.lua`); new arguments give it another revision (`lua/replace_arguments.lua`). Within one id the
arguments never change. A part of each id is random, so that it does not come again where the server has lost its data
(`broker/queues/queue_ids.py`). Who notices an old entry:

* the publishing scripts, for messages that were prepared by the arguments (`Outgoing.queue_id`): they store nothing then;
* the sweep, which tells the id of each queue that this process consumes every four seconds, as the looks at empty queues do;
* `delete.lua`, for the end of an auto-delete queue.

All else is decided by the scripts, by the record itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.limits import Limits

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments

#: Queues that are remembered at least, of those used last. A process may answer any number of reply queues.
MAX_KNOWN_QUEUES = 4096


@dataclass(slots=True)
class KnownQueue:
    """A queue's record, as it was read."""

    id: bytes
    arguments: QueueArguments
    #: This process has seen to it that the queue is swept, also without consumers.
    always_swept: bool = False
    #: What it was declared with, where a policy may have replaced some of that; None: `arguments`.
    declared: QueueArguments | None = None
    #: Whether `lua/publish_ordinary.lua` may publish to it: it lasts, and its arguments say nothing that publishing has to heed.
    ordinary: bool = field(init=False)

    def __post_init__(self) -> None:
        """Look at the arguments once, and not for each message."""
        arguments = self.arguments
        heeded = {"x-message-ttl", "x-priority-ageing"} & arguments.arguments.keys()
        self.ordinary = not (arguments.transient or heeded or arguments.groups or Limits.of(arguments).encode())


class KnownQueues:
    """The records that a process has read, about `MAX_KNOWN_QUEUES`. Its methods may be called from any thread."""

    def __init__(self, most: int = MAX_KNOWN_QUEUES) -> None:
        """Start empty; remember `most` queues, and as many that were used before them."""
        self._most = most
        self._known: dict[str, KnownQueue] = {}
        #: Those that were not used since `_known` was filled last.
        self._older: dict[str, KnownQueue] = {}

    def get(self, name: str) -> KnownQueue | None:
        """Return what is known of a queue, or None. Every publish asks."""
        known = self._known.get(name)
        if known is None and (known := self._older.get(name)) is not None:
            self.put(name, known)
        return known

    def put(self, name: str, known: KnownQueue) -> None:
        """Remember a record."""
        self._known[name] = known
        if len(self._known) >= self._most:
            self._older, self._known = self._known, {}

    def make_room(self, most: int) -> None:
        """Remember `most` queues from now on, where that is more."""
        self._most = max(self._most, most)

    def forget(self, name: str) -> None:
        """Forget a queue: it was deleted, or its entry is old."""
        self._known.pop(name, None)
        self._older.pop(name, None)
