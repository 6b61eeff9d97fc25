"""What a publisher has to remember of a message until the server has confirmed it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from celery_redis_plus import clock


class _Number(NamedTuple):
    """What a message went out under, while it is unknown whether it arrived."""

    producer: bytes
    number: int
    born: float
    #: How many replicas have it, too few; None where it is unknown whether it has arrived at all.
    replicas: int | None = None


class PublishAttempt:
    """What a publisher has to remember of a message until the server has confirmed it: the numbers it went out under.

    One attempt belongs to one logical publish and outlives its retries, also on other channels and connections.
    """

    #: Target (queue or exchange) -> number; only targets whose outcome is unknown, or that too few replicas have.
    pending: Mapping[str, _Number] = MappingProxyType({})
    #: Targets that have confirmed.
    done: tuple[str, ...] = ()
    #: Queue -> its message's tag, empty where it is a duplicate, for a publisher who asks for it by an empty dict.
    tags: dict[str, str] | None = None
    #: How often the bindings that it was routed by had changed meanwhile.
    reroutes: int = 0
    #: The stored message with the same deduplication id; then this one is not stored.
    duplicate_of: str | None = None
    #: The id of that message's task.
    duplicate_task: str | None = None

    def confirm(self, target: str) -> None:
        """Note that the target has confirmed."""
        self.done = (*self.done, target)

    def mark_unknown(self, target: str, producer: bytes, number: int) -> None:
        """Note that the outcome of a first try is unknown."""
        self.pending = {target: _Number(producer, number, clock.now_s()), **self.pending}

    def end_doubt(self, target: str) -> None:
        """Note that nothing is in doubt of a target any more."""
        self.pending = {name: number for name, number in self.pending.items() if name != target}

    def stored(self, target: str, producer: bytes, number: int, replicas: int) -> None:
        """Note that the message has arrived, on too few replicas: a retry stores nothing and asks them again."""
        self.mark_unknown(target, producer, number)
        self.pending = {**self.pending, target: self.pending[target]._replace(replicas=replicas)}

    def short_of_replicas(self) -> int | None:
        """Return the fewest replicas that a target's message is on, None where all have enough; a retry asks again."""
        short = {name: known.replicas for name, known in self.pending.items() if known.replicas is not None}
        self.done = tuple(target for target in self.done if target not in short)
        return min(short.values(), default=None)
