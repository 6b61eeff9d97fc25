"""How far each subscriber of this process is: a position outlives channels and connections.

A subscriber is one queue of one connection on one stream. When its connection breaks, its position becomes an orphan, which
the next connection of this process that binds the same queue adopts: nothing between is missed, and what was delivered and not
settled is delivered again, flagged.
"""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import Unacked
from celery_redis_plus.broker.fanout.entries import Entry, EntryId, Mark, mark_of, parse_id
from celery_redis_plus.connection.forks import lock_of

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
    from celery_redis_plus.keys import FanoutKeys

logger = logging.getLogger(__name__)

#: The first part of a durable subscriber's id; others have a random one, without a dot.
DURABLE = "durable"


class Owner(Protocol):
    """A session, as far as its positions have to know it."""

    @property
    def id(self) -> str:
        """Its name on the server."""

    @property
    def broken(self) -> bool:
        """Whether it has ended without saying so."""

    @property
    def client_connection(self) -> object | None:
        """What opens a session again after this one: the client's connection, None where it is gone."""

    def reject_broadcast(self, unacked: UnackedBroadcast) -> bool:
        """End a broadcast that was not done; return False where it is settled. Raises as `CommandConnection.call` does."""


@dataclass(frozen=True, slots=True)
class SubscriberCounts:
    """What has happened to the broadcasts of one subscriber, since it exists.

    Attributes:
        delivered: handed to its consumer, each once. acked, rejected: its answers; without acks a delivery counts as acked.
        dead_lettered: rejected ones that went to the dead-letter exchange of its queue. lost: dropped from the stream before it
        had read them. bytes: size of those that were delivered, headers and bodies.
    """

    delivered: int = 0
    acked: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    lost: int = 0
    bytes: int = 0

    def encode(self) -> str:
        """Return them as the record has them."""
        return ",".join(map(str, astuple(self)))

    @classmethod
    def decode(cls, text: str) -> SubscriberCounts:
        """Return what `encode` was called on; zeros for the empty text."""
        return cls(*map(int, text.split(","))) if text else cls()


@dataclass(slots=True, eq=False)
class UnackedBroadcast(Unacked):
    """A delivered broadcast that is not settled."""

    position: SubscriberCursor
    entry: Entry
    #: Where the position was before it.
    before: Mark
    #: The try to make it a dead letter; a second one after a failure is the same.
    attempt: PublishAttempt | None = None


class SubscriberCursor:
    """What one subscriber has processed of one stream. Settlements may come from any thread."""

    def __init__(self, queue: str, keys: FanoutKeys, *, durable: bool) -> None:
        """Prepare; `start` says where."""
        self.id = f"{secrets.token_hex(6)}.{queue}"
        self.queue = queue
        self.keys = keys
        self.stream = keys.stream
        self.durable_id = f"{DURABLE}.{queue}" if durable else ""
        #: Entries up to this one may have been delivered before, by a process that did not say how far it was.
        self.redeliver_up_to: EntryId | None = None
        #: The session that reads for it; None: an orphan.
        self._owner: weakref.ReferenceType[Owner] | None = None
        self.client_connection: weakref.ReferenceType[Any] | None = None
        self.orphaned_at = 0.0
        #: Something consumes it: the registry shall know that it lives.
        self.live = False
        #: Its unsubscription is on its way, or done.
        self.ended = False
        #: Delivered and not settled, by delivery tag, in the order of delivery.
        self.open: dict[str, UnackedBroadcast] = {}
        #: What to deliver again, flagged, before anything new; in the order of the stream.
        self.to_redeliver: list[UnackedBroadcast] = []
        #: Where to go on, since the stream has gone back: the maintenance tasks have noticed that.
        self.rewind_to: Mark | None = None
        #: Called, from any thread, when one of these two was set.
        self.on_change: Callable[[], None] = lambda: None
        #: After so many broadcasts a report is made, because publishers may wait for them; 0: never.
        self.report_every = 0
        # Weak: it leads to a session, which is freed when its client drops it without a close.
        self._on_progress: weakref.WeakMethod[Callable[[SubscriberCursor], None]] | None = None
        self._reported = 0
        #: How many broadcasts it has missed since it exists.
        self.missed = 0
        #: Counters, which never fall: the server adds up how much they grow. Broadcasts that were delivered, their bytes, those
        #: acked or rejected by the consumer, and dead letters.
        self.delivered = self.delivered_bytes = self.acked = self.rejected = self.dead_lettered = 0
        self._lock = lock_of(self)
        self._passed: Entry | None = None
        self._mark = Mark()

    def start(self, mark: Mark, redeliver_up_to: bytes) -> None:
        """Start after `mark`; entries up to `redeliver_up_to`, if not empty, are flagged as redelivered."""
        self._mark = mark
        self._reported = mark.number
        self.redeliver_up_to = parse_id(redeliver_up_to) if redeliver_up_to else None

    # -- where it is ------------------------------------------------------------------------------------------------------

    @property
    def reached(self) -> Mark:
        """The place after the last entry that was delivered or passed over."""
        passed = self._passed
        if passed is not None:
            self._passed = None
            self._mark = mark_of(passed, self._mark.number)
        return self._mark

    def pass_to(self, entry: Entry) -> None:
        """Note that the broadcast was delivered, or passed over: on the hot path, so its number is read when somebody asks."""
        self._passed = entry

    def seek(self, mark: Mark) -> None:
        """Go on after `mark`, whatever lies between."""
        self._passed, self._mark = None, mark

    @property
    def cursor(self) -> Mark:
        """The place up to which everything is processed: what was delivered and not settled lies behind it."""
        while True:
            try:
                first = next(iter(self.open.values()), None)
            except RuntimeError:  # another thread settles
                continue
            waiting = [opened.before for opened in (first, *self.to_redeliver[:1]) if opened is not None]
            return min(waiting, key=lambda mark: mark.id, default=None) or self.reached

    # -- what is delivered ------------------------------------------------------------------------------------------------

    def deliver(self, tag: str, entry: Entry, before: Mark) -> UnackedBroadcast:
        """Note that the broadcast is being delivered under `tag` and will be settled; `before` is its own if it comes again."""
        opened = self.open[tag] = UnackedBroadcast(tag, self, entry, before)
        return opened

    def settle(self, tag: str, settlement: Settlement) -> bool:
        """Note a settlement; return False where the broadcast is settled already, perhaps by another thread.

        A requeue brings the broadcast again; a reject ends it. The caller has made it a dead letter, where its queue has an
        exchange for those.
        """
        opened = self.open.pop(tag, None)
        if opened is None:
            return False
        if opened.deliveries is not None:
            opened.deliveries.pop(tag, None)
        with self._lock:
            self.acked += settlement is Settlement.ACK
            self.rejected += settlement is Settlement.REJECT
        if settlement is Settlement.REJECT:
            logger.info(
                "broadcast %s of exchange %r was rejected by queue %r: it ends there",
                opened.entry[0].decode(), self.keys.exchange, self.queue,
                extra={"exchange": self.keys.exchange, "queue": self.queue},
            )  # fmt: skip
        elif settlement is Settlement.REQUEUE:
            self._bring_again([opened])
        if self.report_every:
            self.report_progress()
        return True

    def counts(self) -> SubscriberCounts:
        """Return what has happened to its broadcasts."""
        return SubscriberCounts(self.delivered, self.acked, self.rejected, self.dead_lettered, self.missed, self.delivered_bytes)

    def report_each(self, number: int, report: Callable[[SubscriberCursor], None]) -> None:
        """Call `report`, a method, after each `number` of broadcasts: publishers may wait for them."""
        self.report_every, self._on_progress = number, weakref.WeakMethod(report)

    def report_progress(self) -> None:
        """Make a report if that is due."""
        number = self.cursor.number
        if not 0 <= number - self._reported < self.report_every:
            self._reported = number
            report = None if self._on_progress is None else self._on_progress()
            if report is not None:
                report(self)

    def take_again(self) -> UnackedBroadcast | None:
        """Take the next broadcast that comes again."""
        with self._lock:
            return self.to_redeliver.pop(0) if self.to_redeliver else None

    def _bring_again(self, opened: list[UnackedBroadcast]) -> None:
        with self._lock:
            self.to_redeliver = sorted([*self.to_redeliver, *opened], key=lambda one: parse_id(one.entry[0]))
        self.on_change()

    # -- connections come and go ------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner | None:
        """The session that reads; None where it is gone. Weak: a connection that was dropped without a close shall be freed."""
        return None if self._owner is None else self._owner()

    def belong_to(self, owner: Owner) -> None:
        """Note who reads from now on."""
        self._owner, self.orphaned_at = weakref.ref(owner), 0.0
        client_connection = owner.client_connection
        self.client_connection = None if client_connection is None else weakref.ref(client_connection)

    def orphan(self) -> None:
        """Leave the position, and what was delivered and not settled, to the next connection."""
        now = clock.now_s()
        self._owner, self.orphaned_at = None, now
        for opened in list(self.open.values()):
            opened.orphaned_at = now

    def go_back_to(self, mark: Mark) -> None:
        """Have the reader go on at `mark`: the stream has gone back behind what was read."""
        self.rewind_to = mark
        self.on_change()

    def decide(self, active_tasks: ActiveTasks | None) -> None:
        """Bring what was delivered over a broken connection again, unless the application still works on it."""
        lost = []
        for tag, opened in list(self.open.items()):
            if not opened.orphaned_at:
                continue
            message = opened.alive
            given_up = message is None or active_tasks is None or active_tasks.is_active(message, opened.orphaned_at) is False
            if given_up and self.open.pop(tag, None) is not None:
                lost.append(opened)
        if lost:
            self._bring_again(lost)

    @property
    def undecided(self) -> bool:
        """Whether something was delivered over a broken connection whose fate is open."""
        return any(opened.orphaned_at for opened in list(self.open.values()))


class SubscriberCursors:
    """The positions of this process on one broker, of all its connections."""

    def __init__(self, keep_s: float) -> None:
        """Give an orphan up that no session adopts for `keep_s` seconds."""
        self.keep_s = keep_s
        self._lock = lock_of(self)
        self._all: list[SubscriberCursor] = []
        #: Counts new positions, so that a maintenance task sees that it has to look again.
        self.version = 0

    def add(self, position: SubscriberCursor, owner: Owner) -> None:
        """Take in a new position of the session `owner`."""
        position.belong_to(owner)
        with self._lock:
            self._all.append(position)
            self.version += 1

    def of(self, owner: Owner, queue: str, stream: bytes) -> SubscriberCursor | None:
        """Return the session's position; what a broken one has left becomes its own. None where there is neither."""
        with self._lock:
            mine = [one for one in self._all if one.queue == queue and one.stream == stream]
            for position in mine:
                if position.owner is owner:
                    return position
            left = [one for one in mine if one.owner is None or one.owner.broken]
            if not left:
                return None
            client = owner.client_connection
            # Several connections may read for one queue: each continues with its own cursor, if that still exists.
            own = (one for one in left if one.client_connection is not None and one.client_connection() is client)
            chosen = next(own, left[0])
            if chosen.owner is not None:
                chosen.orphan()
            chosen.belong_to(owner)
            return chosen

    def find(self, tag: str) -> UnackedBroadcast | None:
        """Return a broadcast that was delivered under `tag` and is not settled."""
        name = tag.rpartition("/")[0]
        found = next((position for position in list(self._all) if position.id == name), None) if name else None
        return None if found is None else found.open.get(tag)

    def owned(self, owner: Owner, queue: str | None = None) -> list[SubscriberCursor]:
        """Return the session's positions, one a stream; all or those of one queue."""
        return [one for one in list(self._all) if one.owner is owner and queue in {None, one.queue}]

    def end(self, position: SubscriberCursor, unsubscribe: Callable[[SubscriberCursor], None]) -> None:
        """End a position by `unsubscribe`, and forget it only where that raises nothing."""
        unsubscribe(position)
        with self._lock:
            if position in self._all:
                self._all.remove(position)

    def expired(self) -> list[SubscriberCursor]:
        """Return the cursors of broken sessions that no session has adopted in time."""
        now = clock.now_s()
        found = []
        for position in list(self._all):
            if position.owner is None or position.owner.broken:
                position.orphaned_at = position.orphaned_at or now
                if now - position.orphaned_at > self.keep_s:
                    found.append(position)
            else:
                position.orphaned_at = 0.0
        return found

    def all(self) -> list[SubscriberCursor]:
        """Return all positions."""
        return list(self._all)
