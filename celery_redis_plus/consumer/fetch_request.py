"""What a fetch is asked for, and what it brings: `QueueConsumers` makes the one and takes the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer
    from celery_redis_plus.stored_message import Claimed


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request for messages of one channel's queues."""

    #: In the order in which they are looked at.
    queues: Sequence[str]
    #: The most messages to claim.
    credit: int
    #: Whether the credit is split among the queues.
    share: bool
    #: How many unacked messages the channel has of each queue, in the order of `queues`; empty: not counted.
    unacked: Sequence[int]
    #: The queues that there is a reason to claim from.
    candidates: Collection[str]
    #: Queue -> its consumer, as the server knows it.
    consumers: Mapping[str, Consumer]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a fetch brought, and what it learned of the queues."""

    messages: list[Claimed] = field(default_factory=list)
    #: Queues that have more, or that have to be asked again.
    more: list[str] = field(default_factory=list)
    #: Queue -> when to ask again, on `clock`, in seconds: no wake-up comes before.
    recheck_at: dict[str, float] = field(default_factory=dict)
    #: Queues of which another consumer is the active one: what is claimed and not delivered goes back.
    released: list[str] = field(default_factory=list)
    #: Queues whose consumer here is over: they belong to another connection.
    ended: list[str] = field(default_factory=list)
