"""Reads what kombu's own Redis transport keeps on a server: its lists, its unacked messages, its bindings.

Source: `kombu/transport/redis.py` and `kombu/transport/virtual/base.py`, kombu 5.6 and 5.7.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from celery_redis_plus import clock
from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.errors import OptionError
from celery_redis_plus.keys import KOMBU_PRIORITY_STEPS, KombuKeys, decode_name

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection

#: All steps that `priority_steps` may have without a word to us: Celery's tasks have priorities from 0 to 9.
STEPS: Final = tuple(range(10))
#: Exchanges of Celery whose queues end with their process: remote control, its replies, events.
TRANSIENT_EXCHANGES: Final = frozenset(("celery.pidbox", "reply.celery.pidbox", "celeryev"))
#: Messages that one command reads at most, and the bytes after which the next one reads fewer.
PAGE, PAGE_BYTES = 100, 4_000_000
#: Seconds between two looks at the bindings: each goes through all keys of the database.
REFRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding, as kombu keeps it."""

    exchange: str
    routing_key: str
    #: A regular expression, for a topic exchange; empty otherwise.
    pattern: str
    queue: str

    def takes(self, routing_key: str) -> bool:
        """Return whether a message with this routing key goes to the queue."""
        try:
            return bool(re.match(self.pattern, routing_key)) if self.pattern else self.routing_key == routing_key
        except re.error:
            # None that kombu has written.
            return False


@dataclass(frozen=True, slots=True)
class KombuUnacked:
    """A message that a worker has, or had when it died."""

    delivery_tag: bytes
    #: When it was delivered, in unix seconds on that worker's clock.
    since_s: float
    #: As it stands in the hash: JSON of message, exchange and routing key.
    text: bytes


class KombuBroker:
    """One installation. All methods raise as `CommandConnection.command` does."""

    def __init__(self, commands: CommandConnection, keys: KombuKeys, steps: Iterable[int] = ()) -> None:
        """Read over `commands`; `steps` are the installation's `priority_steps`. Messages of other steps to 9 are found, too."""
        self.commands = commands
        self.keys = keys
        self._written_steps = sorted(steps) or KOMBU_PRIORITY_STEPS
        self.steps: Sequence[int] = sorted({*STEPS, *steps})
        self._bindings: list[Binding] = []
        self._refresh_at = 0.0

    @classmethod
    def of_options(cls, commands: CommandConnection, prefix: str, options: Mapping[str, Any]) -> Self:
        """Return the installation with this `global_keyprefix` and these transport options.

        Raises:
            OptionError: its `priority_steps` are no whole numbers.
        """
        names = ("sep", "unacked_key", "unacked_index_key")
        keys = KombuKeys(prefix, **{name: str(options[name]) for name in names if options.get(name)})
        return cls(commands, keys, _steps(options.get("priority_steps")))

    def refresh(self) -> None:
        """Read the bindings anew, if that is not just done."""
        now = clock.now_s()
        if now < self._refresh_at:
            return
        self._refresh_at = now + REFRESH_S
        found = []
        for key in sorted({key for page in scan_keys(self.commands, self.keys.bindings) for key in page}):
            exchange = self.keys.exchange_of(key)
            for member in self.commands.command("SMEMBERS", key):
                routing_key, pattern, queue = [*decode_name(member).split(self.keys.sep), "", "", ""][:3]
                found.append(Binding(exchange, routing_key, pattern, queue))
        self._bindings = found

    def queues(self, others: Iterable[str] = ()) -> list[str]:
        """Return the names of the queues that are bound, and the `others`; without those that end with their process."""
        bound = {one.queue for one in self._bindings if one.exchange not in TRANSIENT_EXCHANGES and one.queue}
        return sorted(bound | {name for name in others if not name.endswith(".celery.pidbox")})

    def lengths(self, queue: str) -> dict[int, int]:
        """Return how many messages wait in the queue, by their step; steps without any are left out."""
        lengths = self.commands.ask([("LLEN", self.keys.list_of(queue, step)) for step in self.steps])
        return {step: length for step, length in zip(self.steps, lengths, strict=True) if length}

    def moving(self, queue: str) -> int:
        """Return how many of the queue's messages are on their way to another server."""
        return int(self.commands.command("LLEN", self.keys.moving(queue)))

    def step_of(self, priority: int) -> int:
        """Return the step in whose list kombu puts a message."""
        return self._written_steps[bisect(self._written_steps, priority) - 1]

    def page(self, key: bytes, skip: int, count: int) -> list[bytes]:
        """Return up to `count` messages of a list in the order of their delivery, behind the first `skip` ones."""
        return next_of_list(self.commands, key, skip, count)

    def unacked(self, until_s: float) -> Iterator[list[KombuUnacked]]:
        """Yield the messages that were delivered until then and are unacked, the first first, a page at a time.

        Which ones is read at the beginning; those that are settled meanwhile are left out.
        """
        found = self.commands.command("ZRANGEBYSCORE", self.keys.unacked_index, "-inf", until_s, "WITHSCORES")
        entries = list(zip(found[::2], found[1::2], strict=True))
        at, count = 0, 1
        while at < len(entries):
            page = entries[at : at + count]
            texts = self.commands.command("HMGET", self.keys.unacked, *[tag for tag, _ in page])
            yield [
                KombuUnacked(tag, float(since), text)
                for (tag, since), text in zip(page, texts, strict=True)
                if text is not None
            ]  # fmt: skip
            at += count
            count = next_count(count, [text or b"" for text in texts])

    def queues_of_unacked(self, one: KombuUnacked) -> list[str]:
        """Return the queues to which kombu would return an unacked message, as `queues_of` does."""
        try:
            _, exchange, routing_key = json.loads(one.text)
        except (ValueError, TypeError, RecursionError):
            return []
        names = (exchange or "", routing_key or "")
        return self.queues_of(*names) if all(isinstance(name, str) for name in names) else []

    def queues_of(self, exchange: str, routing_key: str) -> list[str]:
        """Return the queues that are bound with a routing key, sorted. kombu does not note from which one a message came.

        It returns an unacked message to each of them (`Channel._do_restore_message` and `_lookup`).
        """
        if not exchange:
            return [routing_key] if routing_key else []
        return sorted({one.queue for one in self._bindings if one.exchange == exchange and one.takes(routing_key)})


def _steps(value: Any) -> list[int]:
    """Return kombu's `priority_steps`: any iterable of whole numbers, as kombu takes it; empty where they are not set."""
    if value is None:
        return []
    # A str is an iterable of no ints.
    steps = list(value) if isinstance(value, Iterable) else [value]
    if not isinstance(value, Iterable) or not all(type(one) is int for one in steps):
        raise OptionError(f"priority_steps {value!r:.100} in broker_transport_options; allowed are whole numbers, as in [0, 5]")
    return steps


def next_of_list(commands: CommandConnection, key: bytes, skip: int, count: int) -> list[bytes]:
    """Return up to `count` elements of a list that were pushed first, behind the first `skip` ones."""
    found: list[bytes] = commands.command("LRANGE", key, -skip - count, -skip - 1)
    return found[::-1]


def next_count(count: int, page: Sequence[bytes]) -> int:
    """Return how many messages the next command reads: more of small ones, fewer of large ones."""
    size = max(1, sum(map(len, page)) // len(page))
    return max(1, min(PAGE, count * 4, PAGE_BYTES // size))
