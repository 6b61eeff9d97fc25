"""What a process holds: one record of every message that it has claimed and not settled, whichever channel claimed it.

A record is made with the claim, and goes when the server has confirmed the settlement. It outlives channels and connections.
Everything else that lists messages lists these records: a channel's buffer, its unsettled deliveries, the acks that wait to be
sent. Heartbeats go out for exactly what stands here, a redelivery of what stands here is adopted instead of run again, and when
a session breaks this is where it is decided what goes back.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.connection.forks import renewed
from celery_redis_plus.events import pack_text
from celery_redis_plus.stored_message import TAG_FLAG

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
    from celery_redis_plus.broker.consumers.last_error import Failure
    from celery_redis_plus.stored_message import Claimed


#: Most broken sessions that a process remembers, to refuse late replies to their claims.
MAX_BROKEN_SESSIONS = 1000
#: Most tags of acked messages that a process remembers. A replica lags by much fewer acks of one process.
MAX_FINISHED_TAGS = 20_000
#: The first pause, in seconds, of a message that timed out and came again to the process whose work on it goes on.
FIRST_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class DeliveryState(Enum):
    """How far a unacked message has come in this process."""

    #: Claimed, not yet delivered: it waits in a channel's buffer.
    BUFFERED = "buffered"
    #: Delivered to the consumer, which has not settled it.
    DELIVERED = "delivered"
    #: Acked or rejected; the server has not confirmed it yet.
    SETTLING = "settling"


@dataclass(frozen=True, slots=True)
class TrackedRecipient:
    """A recipient of a tracked delivery: its publisher waits for the answer."""

    #: The delivery's.
    id: str
    #: A queue, or the id of a subscriber.
    name: str
    #: The broadcast as its stream has it; None where it came by a queue.
    payload: bytes | None = None


@dataclass(slots=True, eq=False)
class Unacked:
    """What a consumer has not settled: a message of a queue, or a broadcast."""

    tag: str
    #: The application's, once it is delivered. Weak, because a message leads to its connection, and records stand in the process:
    #: a connection that was dropped without a close shall be freed.
    message: weakref.ReferenceType[Any] | None = field(default=None, kw_only=True)
    #: The unsettled deliveries of the channel that has delivered it, by tag: it is among them until it is settled.
    deliveries: dict[str, Unacked] | None = field(default=None, kw_only=True)
    #: When that channel or its session went, on `clock`, in seconds; 0 while it is there.
    orphaned_at: float = field(default=0.0, kw_only=True)
    tracked: TrackedRecipient | None = field(default=None, kw_only=True)

    @property
    def alive(self) -> Any:
        """The message, if the application still has it; else None."""
        return None if self.message is None else self.message()


@dataclass(slots=True, eq=False)
class UnackedMessage(Unacked):
    """One unacked message of a queue."""

    queue: str
    claim: int
    session: str
    #: What the claim has brought; None once it is delivered or settled.
    content: Claimed | None = None
    state: DeliveryState = DeliveryState.BUFFERED
    #: How it is settled; None as long as it is not.
    settlement: Settlement | None = None
    #: The server says that another holder has it: no heartbeat any more, but an ack still counts.
    lease_lost: bool = False
    #: How the work ended, for the event of its ack: reason, TAB, the exception's class and message. Empty is success.
    outcome: str = ""
    #: The exception with which it ended, for the message's hash if it is not acked; as `broker.last_error` packs it.
    error: str = ""
    #: Its ack does not wait for the work on it.
    acked_early: bool = False
    #: That work begins in this process, so that the ack has to leave first.
    begins_here: bool = False
    #: Its consumer says that the work on it failed, should it send it back.
    failed: bool = False
    #: Milliseconds until it is delivered again, once it went back; None leaves them to its queue.
    retry_delay_ms: int | None = None
    #: A delivery of it failed before: the server has to hear when the work on it begins.
    failed_before: bool = False
    #: The server was told so.
    begun: bool = False
    #: The work on it has begun here.
    started: bool = False
    #: Its session is gone, and the application has said that it still works on it.
    kept: bool = False
    #: When the server was last asked, and said that the claim is ours; on `clock`, in seconds.
    confirmed_at: float = 0.0
    #: When its queue's `x-consumer-timeout` sent it back while it was worked on here, on `clock`, in seconds; 0: not.
    timed_out_at: float = 0.0

    @property
    def given_back(self) -> bool:
        """Whether it is being settled, and not by an ack."""
        return self.settlement not in (None, Settlement.ACK)

    @property
    def is_settled(self) -> bool:
        """Whether it is settled, though the server may not have confirmed that yet."""
        return self.state is DeliveryState.SETTLING

    @property
    def is_logged(self) -> bool:
        """Whether its events are written: decided when it was published."""
        return self.tag[TAG_FLAG] in {"-", "=", "_", "+"}

    def is_certain(self, within_s: float) -> bool:
        """Return whether the claim is ours: confirmed by the server in the last `within_s` seconds, and not lost since."""
        return not self.lease_lost and clock.now_s() - self.confirmed_at <= within_s

    @property
    def is_plain(self) -> bool:
        """Whether it has neither events nor a queue with limits."""
        return self.tag[TAG_FLAG] == "."

    def note_outcome(self, reason: str, failure: Failure | None = None) -> None:
        """Note how the work on it ended: its settlement will tell, unless it is on its way."""
        if self.state is not DeliveryState.SETTLING:
            self.error = "" if failure is None else failure.packed()
            if self.is_logged:
                self.outcome = f"{pack_text(reason)}\t{pack_text(failure.text) if failure else ''}"


class UnackedMessages:
    """The messages that this process holds on one broker. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._unacked: dict[str, UnackedMessage] = {}
        # Held where a record is made, delivered, taken for settling, or forgotten. So a message is delivered or given back, and
        # settled once, whichever threads do so, and one that is claimed anew meanwhile is not forgotten. All other fields are
        # changed by one thread, or by a single assignment. Re-entrant: a signal's handler (a cold shutdown) may meet the loop's
        # thread inside.
        self._lock = renewed(self, "_lock", threading.RLock)
        #: Records whose settlement has to go out over another connection than the one the message came by.
        self._deferred: deque[UnackedMessage] = deque()
        #: The tags acked last. A failover to a replica that lags, or a restored state, brings acked messages back, and nothing
        #: else does: what is rejected, requeued, released or replayed was not acked.
        self._finished: OrderedDict[str, None] = OrderedDict()
        #: Deliveries whose session went while the application worked on them, until they are settled; by tag.
        self._kept: dict[str, UnackedMessage] = {}
        #: Maintenance is sending deferred settlements that it has taken.
        self._settling_deferred = False
        #: Sessions that broke -> the queues they consumed.
        self._broken: dict[str, frozenset[str]] = {}
        #: Sessions that broke at any time, the last `MAX_BROKEN_SESSIONS` of them.
        self._gone: dict[str, None] = {}
        #: Queues with a limit of messages in work: a settlement there makes room, and wakes who may take the next one.
        self.limited: set[str] = set()
        #: Queue -> seconds for which a consumer may hold a message of it, where that is limited.
        self.timeouts_s: dict[str, float] = {}
        #: Queues whose log line about messages that are sent back repeatedly was written.
        self.pauses_logged: set[str] = set()
        #: How many messages that were added a consumer had seen before.
        self.redelivered = 0
        #: How many batches have brought a message.
        self.batches = 0
        #: Called, from any thread, when maintenance has something to do.
        self.on_work: Callable[[], None] = lambda: None
        #: Called, from any thread, when a message is settled that outlived its session: there is room for another one.
        self.on_kept_settled: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Return how many messages are unacked."""
        return len(self._unacked)

    def note_arguments(self, queue: str, arguments: QueueArguments) -> None:
        """Remember what a queue's arguments say about unacked messages."""
        if arguments.max_unacked is None:
            self.limited.discard(queue)
        else:
            self.limited.add(queue)
        if arguments.consumer_timeout_ms is None:
            self.timeouts_s.pop(queue, None)
        else:
            self.timeouts_s[queue] = arguments.consumer_timeout_ms / 1000

    # -- claimed, delivered, settled ------------------------------------------------------------------------------------

    def add(self, messages: Iterable[Claimed], session: str, asked_at: float) -> list[UnackedMessage]:
        """Enter a batch that was claimed at `asked_at`, on `clock`, in seconds; return the records of those to deliver.

        A message that this process holds already was recovered while it was being worked on: its new claim is adopted. One that
        it has given back is back on the server, whether or not the answer to that was read: it is delivered anew. One that timed
        out while it is worked on here is for other consumers, and goes back.
        """
        fresh: list[UnackedMessage] = []
        with self._lock:
            if session in self._gone:
                # Its reply was read while another thread found the session broken: the server gives them back, or has.
                return fresh
            for message in messages:
                self.redelivered += message.redelivered
                known = self._unacked.get(message.tag)
                if known is None and (message.retried or message.tag in self._finished):
                    self._ack_again(message, session)
                elif known is None or known.given_back:
                    unacked = UnackedMessage(message.tag, message.queue, message.claim, session, message, confirmed_at=asked_at)
                    unacked.failed_before = message.failures > 0
                    self._unacked[message.tag] = unacked
                    fresh.append(unacked)
                elif known.timed_out_at and known.state is DeliveryState.DELIVERED:
                    self._leave_to_others(known, message, session)
                else:
                    known.claim, known.session, known.confirmed_at = message.claim, session, asked_at
                    known.lease_lost = False
                    if known.state is DeliveryState.BUFFERED:
                        known.content = message
                        fresh.append(known)
            if fresh:
                self.batches += 1
        return fresh

    def _ack_again(self, message: Claimed, session: str) -> None:
        """Settle a message that is done, and whose ack the server does not have: lost, or never sent by a worker that died."""
        about = {"tag": message.tag, "queue": message.queue}
        if message.retried:
            logger.info("message %s of queue %r came again after its retry: it is acked", message.tag, message.queue, extra=about)
        else:
            logger.warning(
                "message %s of queue %r came again after its ack, which the server has lost (a failover, or a restored state): "
                "it is acked again, and does not run again here",
                message.tag, message.queue, extra=about,
            )  # fmt: skip
        unacked = self._unacked[message.tag] = UnackedMessage(message.tag, message.queue, message.claim, session)
        if message.retried:
            unacked.note_outcome("retry")
        self.defer(unacked, Settlement.ACK)

    def _leave_to_others(self, known: UnackedMessage, message: Claimed, session: str) -> None:
        """Give a message back whose work here took too long and goes on: no failure, and pauses that double up to the timeout."""
        held_s = clock.now_s() - known.timed_out_at
        pause_s = min(max(held_s, FIRST_PAUSE_S), self.timeouts_s.get(message.queue, math.inf))
        again = UnackedMessage(message.tag, message.queue, message.claim, session, retry_delay_ms=math.ceil(pause_s * 1000))
        self.defer(again, Settlement.RELEASE_SEEN)

    def mark_timed_out(self, messages: Iterable[UnackedMessage]) -> None:
        """Note that the work on messages takes too long: what comes again of them is for other consumers."""
        with self._lock:
            for unacked in messages:
                unacked.timed_out_at = unacked.timed_out_at or clock.now_s()

    def find(self, tag: str) -> UnackedMessage | None:
        """Return a unacked message."""
        return self._unacked.get(tag)

    def deliver(self, unacked: UnackedMessage) -> bool:
        """Note that a buffered message is delivered now; return False where another thread has given it back."""
        with self._lock:
            if unacked.state is not DeliveryState.BUFFERED:
                return False
            unacked.state, unacked.content = DeliveryState.DELIVERED, None
        return True

    def begin_settling(self, tag: str, settlement: Settlement) -> UnackedMessage | None:
        """Take `tag` for settling; None where it is not unacked or is being settled already."""
        with self._lock:
            unacked = self._unacked.get(tag)
            if unacked is None or unacked.state is DeliveryState.SETTLING:
                return None
            unacked.state, unacked.settlement, unacked.content = DeliveryState.SETTLING, settlement, None
        if unacked.deliveries is not None:
            unacked.deliveries.pop(tag, None)
        if self._kept:
            self._end_kept(tag)
        return unacked

    def discard(self, unacked: UnackedMessage) -> None:
        """Forget a message whose settlement the server has confirmed; of an acked one the tag is remembered for a while."""
        with self._lock:
            if self._unacked.get(unacked.tag) is unacked:
                del self._unacked[unacked.tag]
                if self._kept:
                    self._end_kept(unacked.tag)
                if unacked.settlement is Settlement.ACK:
                    self._finished[unacked.tag] = None
                    if len(self._finished) > MAX_FINISHED_TAGS:
                        self._finished.popitem(last=False)

    def defer(self, unacked: UnackedMessage, settlement: Settlement) -> None:
        """Leave the settlement of a message that was taken for settling to maintenance: its connection is lost."""
        unacked.state, unacked.settlement, unacked.content = DeliveryState.SETTLING, settlement, None
        self._deferred.append(unacked)
        self.on_work()

    def release(self, unacked: UnackedMessage) -> None:
        """Have maintenance release a message, unless it is being settled."""
        self._release([unacked])

    def _release(self, messages: Iterable[UnackedMessage]) -> None:
        with self._lock:
            for unacked in messages:
                if unacked.state is not DeliveryState.SETTLING:
                    seen = unacked.state is DeliveryState.DELIVERED
                    unacked.settlement = Settlement.RELEASE_SEEN if seen else Settlement.RELEASE_UNSEEN
                    unacked.state, unacked.content = DeliveryState.SETTLING, None
                    self._deferred.append(unacked)
                    self._end_kept(unacked.tag)
        self.on_work()

    # -- broken sessions ------------------------------------------------------------------------------------------------

    def abandon(self, session: str, queues: Iterable[str], delivered: Iterable[Unacked] = ()) -> None:
        """Take over what a broken session leaves: its buffer goes back at once, the rest when the application has decided.

        Args:
            session: the holder's id on the server.
            queues: what it consumed.
            delivered: what one of its channels had delivered and not settled.
        """
        with self._lock:
            self._gone[session] = None
            while len(self._gone) > MAX_BROKEN_SESSIONS:
                del self._gone[next(iter(self._gone))]
            mine = [unacked for unacked in self._unacked.values() if unacked.session == session]
            self._release(unacked for unacked in mine if unacked.state is DeliveryState.BUFFERED)
            self.orphan(delivered)
            # Last: a thread that sees that it is broken sees the returned messages, too.
            self._broken[session] = frozenset(queues) | self._broken.get(session, frozenset())
        self.on_work()

    def orphan(self, delivered: Iterable[Unacked]) -> None:
        """Take over what a channel that is closed has delivered: it goes back when the application has decided so."""
        for unacked in delivered:
            if isinstance(unacked, UnackedMessage):
                unacked.orphaned_at = clock.now_s()
        self.on_work()

    def drop(self, session: str, queues: Iterable[str]) -> None:
        """Give back the messages of a session that was never closed. The collector freed it, and so its messages.

        Args:
            session: the holder's id on the server.
            queues: what it consumed.
        """
        delivered = [
            unacked
            for unacked in list(self._unacked.values())
            if unacked.session == session and unacked.state is DeliveryState.DELIVERED and not unacked.orphaned_at
        ]
        if queues or delivered:
            self.abandon(session, queues)
        self._release(delivered)
        self._settle_again([unacked for unacked in list(self._unacked.values()) if unacked.session == session])

    def give_back(self) -> None:
        """Have maintenance release all unacked messages, and settle again what is not confirmed, since the process ends."""
        self._release(list(self._unacked.values()))
        self._settle_again(list(self._unacked.values()))

    def _settle_again(self, messages: Iterable[UnackedMessage]) -> None:
        """Have maintenance settle what is being settled: no thread sends that any more, or reads the server's reply to it."""
        with self._lock:
            waiting = set(self._deferred)
            self._deferred.extend(
                unacked for unacked in messages if unacked.state is DeliveryState.SETTLING and unacked not in waiting
            )
        self.on_work()

    def orphaned(self) -> list[UnackedMessage]:
        """Return the delivered messages whose channel or session is gone."""
        return [
            unacked
            for unacked in list(self._unacked.values())
            if unacked.orphaned_at and unacked.state is DeliveryState.DELIVERED
        ]

    def keep(self, unacked: UnackedMessage) -> None:
        """Note that the application still works on a message whose session is gone."""
        unacked.kept = True
        self._kept[unacked.tag] = unacked

    def count_kept(self) -> int:
        """Return on how many messages of sessions that are gone the application still works."""
        return len(self._kept)

    def _end_kept(self, tag: str) -> None:
        if self._kept.pop(tag, None) is not None:
            self.on_kept_settled()

    def broken_sessions(self) -> dict[str, frozenset[str]]:
        """Return the broken sessions whose messages on the server are not released yet."""
        return dict(self._broken)

    def recovered(self, session: str, queues: frozenset[str]) -> None:
        """Note that a broken session's remains on `queues` are back."""
        with self._lock:
            left = self._broken.pop(session, frozenset()) - queues
            if left:
                self._broken[session] = left

    def goes_back(self, session: str, queue: str) -> bool:
        """Return whether messages that a broken session held on a queue are still to be released, as far as is decided."""
        return queue in self._broken.get(session, ()) or any(
            unacked.state is DeliveryState.SETTLING and unacked.given_back for unacked in self._of(session, queue)
        )

    def is_undecided(self, session: str, queue: str) -> bool:
        """Return whether the application has not decided about some of a broken session's deliveries from a queue."""
        return any(
            unacked.state is DeliveryState.DELIVERED and unacked.orphaned_at and not unacked.kept
            for unacked in self._of(session, queue)
        )

    def _of(self, session: str, queue: str) -> list[UnackedMessage]:
        return [unacked for unacked in list(self._unacked.values()) if unacked.session == session and unacked.queue == queue]

    # -- for maintenance -------------------------------------------------------------------------------------------------

    def take_deferred(self) -> list[UnackedMessage]:
        """Take the records whose settlement waits, until `finish_deferred`."""
        taken = []
        self._settling_deferred = bool(self._deferred)
        while self._deferred:
            taken.append(self._deferred.popleft())
        return taken

    def finish_deferred(self, left: Iterable[UnackedMessage] = ()) -> None:
        """Note that the messages taken are settled, except those `left`, which wait again."""
        self._deferred.extend(left)
        self._settling_deferred = False

    @property
    def waiting(self) -> bool:
        """Whether settlements or broken sessions wait for maintenance, or for the server's answer to them."""
        return bool(self._deferred or self._settling_deferred or self._broken)

    def by_queue(self) -> dict[str, list[UnackedMessage]]:
        """Return what heartbeats go out for, by queue: everything unacked that no other holder has taken over."""
        queues: dict[str, list[UnackedMessage]] = {}
        for unacked in list(self._unacked.values()):
            if not unacked.lease_lost:
                queues.setdefault(unacked.queue, []).append(unacked)
        return queues

    def sessions(self) -> set[tuple[str, str]]:
        """Return (session, queue) of everything unacked."""
        return {(unacked.session, unacked.queue) for unacked in list(self._unacked.values())}

    def tags(self, queue: str | None = None) -> list[str]:
        """Return the tags unacked, of one queue or of all."""
        return [tag for tag, unacked in list(self._unacked.items()) if queue in {None, unacked.queue}]

    def mark_lease_lost(self, tag: str, claim: int) -> UnackedMessage | None:
        """Note that the server gave a message to another consumer, unless that is known, or it was claimed again."""
        unacked = self._unacked.get(tag)
        if unacked is None or unacked.claim != claim or unacked.state is DeliveryState.SETTLING or unacked.lease_lost:
            return None
        unacked.lease_lost = True
        return unacked
