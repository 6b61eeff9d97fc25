"""The record of one unacked message, or broadcast: how far it is, how its work ended, and how it is settled."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.events import pack_text
from celery_redis_plus.stored_message import TAG_FLAG

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.last_error import Failure
    from celery_redis_plus.stored_message import Claimed


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
    #: It is acked before the work on it begins, so that its ack may wait a moment for company.
    acked_early: bool = False
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
        return self.tag[TAG_FLAG] in {"-", "="}

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
