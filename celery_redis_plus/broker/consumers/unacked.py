"""What a process holds: every message it has claimed and not settled, whichever channel claimed it.

It outlives channels and connections. Heartbeats go out for exactly what stands here, a redelivery of what stands
here is adopted instead of run again, and when a session breaks this is where it is decided what goes back.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.finished_tags import FinishedTags
from celery_redis_plus.connection.forks import renewed
from celery_redis_plus.events import is_logged, pack_text

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.last_error import Failure
    from celery_redis_plus.stored_message import Claimed


#: Most broken sessions that a process remembers, to refuse late replies to their claims.
MAX_BROKEN_SESSIONS = 1000


logger = logging.getLogger(__name__)


class DeliveryState(Enum):
    """How far a unacked message has come in this process."""

    #: Claimed, not yet delivered: it waits in a channel's buffer.
    BUFFERED = "buffered"
    #: Delivered to the consumer, which has not settled it.
    DELIVERED = "delivered"
    #: Acked or rejected; the server has not confirmed it yet.
    SETTLING = "settling"


class Settlement(Enum):
    """What a settlement does with a message."""

    ACK = "ack"
    #: Rejected without requeue: to the dead letters.
    REJECT = "reject"
    #: Sent back by a consumer that wants it to be delivered again: back in place.
    REQUEUE = "requeue"
    #: Sent back because the work on it failed: a failed delivery, back in place.
    FAIL = "fail"
    #: Given back by a consumer that had seen it, without a failure: close, cancel, shutdown.
    RELEASE_SEEN = "release seen"
    #: Given back out of a buffer: nobody saw it.
    RELEASE_UNSEEN = "release unseen"


@dataclass(slots=True, eq=False)
class UnackedMessage:
    """One unacked message."""

    tag: str
    queue: str
    claim: int
    session: str
    state: DeliveryState = DeliveryState.BUFFERED
    #: Set when the message's session has gone: whether the application still has the message.
    message: weakref.ReferenceType[Any] | None = None
    #: When the session went, on `clock`, in seconds.
    orphaned_at: float = 0.0
    #: The server says that another holder has it: no heartbeat any more, but an ack still counts.
    lease_lost: bool = False
    #: It is being settled, and not by an ack.
    given_back: bool = False
    #: How the work ended, for the event of its ack: reason, TAB, the exception's class and message. Empty is success.
    outcome: str = ""
    #: The exception with which it ended, for the message's hash if it is not acked; as `broker.last_error` packs it.
    error: str = ""
    #: It is acked before the work on it begins, so that its ack may wait a moment for company.
    acked_early: bool = False
    #: Its consumer says that the work on it failed, should it send it back.
    failed: bool = False
    #: A delivery of it failed before: the server has to hear when the work on it begins.
    failed_before: bool = False
    #: The server was told so.
    begun: bool = False
    #: When the server was last asked, and said that the claim is ours; on `clock`, in seconds.
    confirmed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DeferredSettlement:
    """A settlement that has to go out over another connection than the one the message came by."""

    unacked: UnackedMessage
    settlement: Settlement


class ActiveTasks(Protocol):
    """Knows which messages of a broken session the application still works on. `integration/` provides it for Celery."""

    def is_stopping(self) -> bool:
        """Return whether the consumer is shutting down, so that nothing unsettled will be settled any more."""

    def stop_requested(self) -> bool:
        """Return whether the consumer was told to end, so that it should be given nothing more."""

    def is_active(self, message: Any, orphaned_at: float) -> bool | None:
        """Return whether `message` will still be settled; None while the application has not decided.

        Args:
            message: what was delivered.
            orphaned_at: when its session went, on `clock`, in seconds.
        """


class UnackedMessages:
    """The messages that this process holds on one broker. Its methods may be called from any thread."""

    def __init__(self) -> None:
        """Start empty."""
        self._unacked: dict[str, UnackedMessage] = {}
        # Re-entrant: a signal's handler (a cold shutdown) may meet the loop's thread inside.
        self._lock = renewed(self, "_lock", threading.RLock)
        self._deferred: deque[DeferredSettlement] = deque()
        self._finished = FinishedTags()
        #: The duties are carrying out orders that they have taken.
        self._settling_deferred = False
        #: Sessions that broke -> the queues they consumed.
        self._broken: dict[str, frozenset[str]] = {}
        #: Sessions that broke at any time, the last `MAX_BROKEN_SESSIONS` of them.
        self._gone: dict[str, None] = {}
        #: Queues with a limit of messages in work: a settlement there makes room, and wakes who may take the next one.
        self.limited: set[str] = set()
        #: Queues whose log line about messages that are sent back repeatedly was written.
        self.pauses_told: set[str] = set()
        #: Called, from any thread, when there is something for the duties to do.
        self.on_work: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Return how many messages are unacked."""
        return len(self._unacked)

    # -- claimed, delivered, settled ------------------------------------------------------------------------------------

    def add(self, messages: Iterable[Claimed], session: str, asked_at: float) -> list[Claimed]:
        """Enter a batch that was claimed at `asked_at`, on `clock`, in seconds; return those to deliver.

        A message that this process holds already was recovered while it was being worked on: its new claim is adopted. One that
        it has given back is back on the server, whether or not the answer to that was read: it is delivered anew.
        """
        with self._lock:
            if session in self._gone:
                # Its reply was read while another thread found the session broken: the server gives them back, or has.
                return []
            return self._add(messages, session, asked_at)

    def _add(self, messages: Iterable[Claimed], session: str, asked_at: float) -> list[Claimed]:
        fresh = []
        for message in messages:
            known = self._unacked.get(message.tag)
            if known is None and message.tag in self._finished:
                self._ack_again(message, session)
            elif known is None or known.given_back:
                unacked = UnackedMessage(message.tag, message.queue, message.claim, session, confirmed_at=asked_at)
                unacked.failed_before = message.failures > 0
                self._unacked[message.tag] = unacked
                fresh.append(message)
            else:
                known.claim = message.claim
                known.session = session
                known.lease_lost = False
                known.confirmed_at = asked_at
                if known.state is DeliveryState.BUFFERED:
                    fresh.append(message)
        return fresh

    def _ack_again(self, message: Claimed, session: str) -> None:
        """Settle a message that this process has acked: the server has lost the ack."""
        logger.warning(
            "message %s of queue %r came again after its ack, which the server has lost (a failover, or a restored state): it is "
            "acked again, and does not run again here",
            message.tag, message.queue,
        )  # fmt: skip
        unacked = self._unacked[message.tag] = UnackedMessage(message.tag, message.queue, message.claim, session)
        self.defer(unacked, Settlement.ACK)

    def find(self, tag: str) -> UnackedMessage | None:
        """Return a unacked message."""
        return self._unacked.get(tag)

    def note_outcome(self, tag: str, reason: str, failure: Failure | None = None) -> None:
        """Note how the work on a message ended: its settlement will tell, unless it is on its way."""
        unacked = self._unacked.get(tag)
        if unacked is not None and unacked.state is not DeliveryState.SETTLING:
            unacked.error = "" if failure is None else failure.packed()
            if is_logged(tag):
                unacked.outcome = f"{pack_text(reason)}\t{pack_text(failure.text) if failure else ''}"

    def settle(self, tag: str, settlement: Settlement) -> UnackedMessage | None:
        """Take `tag` for settling; None where it is not unacked or is being settled already."""
        unacked = self._unacked.get(tag)
        if unacked is None or unacked.state is DeliveryState.SETTLING:
            return None
        unacked.state = DeliveryState.SETTLING
        unacked.given_back = settlement is not Settlement.ACK
        return unacked

    def discard(self, unacked: UnackedMessage) -> None:
        """Forget a message whose settlement the server has confirmed; of an acked one the tag is remembered for a while."""
        if self._unacked.get(unacked.tag) is unacked:
            del self._unacked[unacked.tag]
            if unacked.state is DeliveryState.SETTLING and not unacked.given_back:
                self._finished.add(unacked.tag)

    def defer(self, unacked: UnackedMessage, settlement: Settlement) -> None:
        """Leave a settlement to the duties: its own connection is gone, or has lost it."""
        unacked.state = DeliveryState.SETTLING
        unacked.given_back = settlement is not Settlement.ACK
        self._deferred.append(DeferredSettlement(unacked, settlement))
        self.on_work()

    # -- broken sessions ------------------------------------------------------------------------------------------------

    def abandon(self, session: str, queues: Iterable[str], delivered: Mapping[str, Any]) -> None:
        """Take over what a broken session leaves: its buffer goes back at once, the rest when the active_tasks has decided.

        Args:
            session: the holder's id on the server.
            queues: what it consumed.
            delivered: tag -> message of what its channels had delivered and not settled.
        """
        with self._lock:
            self._gone[session] = None
            while len(self._gone) > MAX_BROKEN_SESSIONS:
                del self._gone[next(iter(self._gone))]
            self._broken[session] = frozenset(queues) | self._broken.get(session, frozenset())
            for unacked in list(self._unacked.values()):
                if unacked.session != session:
                    continue
                if unacked.state is DeliveryState.BUFFERED:
                    unacked.state = DeliveryState.SETTLING
                    unacked.given_back = True
                    self._deferred.append(DeferredSettlement(unacked, Settlement.RELEASE_UNSEEN))
        self.orphan(delivered)

    def orphan(self, delivered: Mapping[str, Any]) -> None:
        """Take over what a closed channel has delivered, tag -> message: it goes back when the active_tasks has decided so."""
        for tag, message in delivered.items():
            unacked = self._unacked.get(tag)
            if unacked is not None and unacked.state is DeliveryState.DELIVERED:
                unacked.message = weakref.ref(message)
                unacked.orphaned_at = clock.now_s()
        self.on_work()

    def drop(self, session: str, queues: Iterable[str]) -> None:
        """Give back what a session unacked that nobody closed. The collector freed it: no application has its messages any more.

        Args:
            session: the holder's id on the server.
            queues: what it consumed.
        """
        delivered = [
            unacked
            for unacked in list(self._unacked.values())
            if unacked.session == session and unacked.state is DeliveryState.DELIVERED and unacked.message is None
        ]
        if queues or delivered:
            self.abandon(session, queues, {})
        for unacked in delivered:
            self.defer(unacked, Settlement.RELEASE_SEEN)

    def give_back(self) -> None:
        """Leave it to the duties to return everything that is unacked, since the process ends."""
        for unacked in list(self._unacked.values()):
            if unacked.state is not DeliveryState.SETTLING:
                self.defer(
                    unacked, Settlement.RELEASE_UNSEEN if unacked.state is DeliveryState.BUFFERED else Settlement.RELEASE_SEEN
                )

    def orphaned(self) -> list[UnackedMessage]:
        """Return the delivered messages whose session is gone."""
        return [
            unacked
            for unacked in list(self._unacked.values())
            if unacked.message is not None and unacked.state is DeliveryState.DELIVERED
        ]

    def broken_sessions(self) -> dict[str, frozenset[str]]:
        """Return the sessions whose remains on the server have not been handed back."""
        return dict(self._broken)

    def recovered(self, session: str) -> None:
        """Note that a broken session's remains are back."""
        self._broken.pop(session, None)

    # -- for the duties -------------------------------------------------------------------------------------------------

    def take_deferred(self) -> list[DeferredSettlement]:
        """Take the waiting orders, until `finish_deferred`."""
        taken = []
        self._settling_deferred = bool(self._deferred)
        while self._deferred:
            taken.append(self._deferred.popleft())
        return taken

    def finish_deferred(self, left: Iterable[DeferredSettlement] = ()) -> None:
        """Note that the orders taken are carried out, except those `left`, which wait again."""
        self._deferred.extend(left)
        self._settling_deferred = False

    @property
    def waiting(self) -> bool:
        """Whether orders or broken sessions wait for the duties, or for the server's answer to them."""
        return bool(self._deferred or self._settling_deferred or self._broken)

    def by_queue(self) -> dict[str, list[UnackedMessage]]:
        """Return what heartbeats go out for, by queue: everything unacked that no other holder has taken over."""
        queues: dict[str, list[UnackedMessage]] = {}
        for unacked in list(self._unacked.values()):
            if not unacked.lease_lost:
                queues.setdefault(unacked.queue, []).append(unacked)
        return queues

    def queues_of(self, tags: Iterable[str]) -> list[str]:
        """Return the queues of those of the messages that are unacked."""
        return [unacked.queue for tag in tags if (unacked := self._unacked.get(tag)) is not None]

    def tags(self) -> list[str]:
        """Return the tags unacked."""
        return list(self._unacked)

    def mark_lease_lost(self, tag: str, claim: int) -> UnackedMessage | None:
        """Note that the server gave a message to another holder, unless it was claimed anew since it was asked."""
        unacked = self._unacked.get(tag)
        if unacked is None or unacked.claim != claim or unacked.state is DeliveryState.SETTLING:
            return None
        unacked.lease_lost = True
        return unacked
