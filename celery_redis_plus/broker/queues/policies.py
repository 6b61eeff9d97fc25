"""Policies: arguments that steer the queues whose names match a pattern, in place of those with which they were declared.

As RabbitMQ's (https://www.rabbitmq.com/docs/policies), but that one overrides what a queue was declared with. At most one policy
applies to a queue, which has to be a lasting one: it changes while it lives, with its messages and consumers. Only arguments that
steer can be in one (`argument_rules.STEERING`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from celery_redis_plus.broker.arguments.argument_rules import check_steering
from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS, time_of_ms
from celery_redis_plus.broker.arguments.field_tables import pack_table, to_text, unpack_table
from celery_redis_plus.broker.arguments.names import is_meant
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from datetime import datetime

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: The field of the list that has its version, in place of a pattern.
VERSION = b""
#: Priorities of policies.
LOWEST, HIGHEST = -1000, 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. `PolicyList` reads and writes them."""

    #: A queue's name, or a pattern of names with `*`, `?` and `[…]`.
    pattern: str
    #: Argument -> value; None: queues are without it, whatever they were declared with.
    arguments: Mapping[str, object]
    reason: str
    #: Of several that match a queue, the one with the highest applies; then a whole name, then the longest pattern.
    priority: int = 0
    #: On the server's clock, ms since the epoch; `until_ms` 0: for good.
    since_ms: int = field(default=0, kw_only=True)
    until_ms: int = field(default=0, kw_only=True)

    @property
    def since(self) -> datetime:
        """When it was set."""
        return time_of_ms(self.since_ms)

    @property
    def until(self) -> datetime | None:
        """When it ends by itself; None: when it is removed."""
        return time_of_ms(self.until_ms) if self.until_ms else None

    def encode(self) -> str:
        """Return what stands in the list of policies under its pattern."""
        removed = sorted(name for name, value in self.arguments.items() if value is None)
        values = pack_table({name: value for name, value in self.arguments.items() if value is not None}, "a policy")
        return to_text(
            {
                "arguments": values, "without": removed, "reason": self.reason, "priority": self.priority,
                "since": self.since_ms, "until": self.until_ms,
            }
        )  # fmt: skip

    @classmethod
    def decode(cls, pattern: str, text: bytes) -> Policy:
        """Return what `encode` was called on. Raises InvalidArgument where the text is no such record."""
        try:
            data = json.loads(text)
            arguments = {**dict.fromkeys(data["without"]), **unpack_table(data["arguments"])}
            since_ms, until_ms, priority = (int(data[name]) for name in ("since", "until", "priority"))
            checked = check_steering(f"policy {pattern!r}", arguments)
            policy = cls(pattern, checked, str(data["reason"]), priority, since_ms=since_ms, until_ms=until_ms)
            # What cannot be shown does not apply.
            policy.since, policy.until, policy.reason.encode()
        except Exception as error:
            # What JSON may raise for a text that somebody else wrote is no closed list.
            raise InvalidArgument(f"stored policy {pattern!r} is {text!r:.200}, and no record of a policy: {error}") from error
        return policy


class Policies(NamedTuple):
    """The policies that apply at one moment."""

    #: Of the list; empty where there was never a policy.
    version: bytes
    #: By pattern.
    all: list[Policy]
    #: Those whose time is over, with their records.
    ended: list[tuple[str, bytes]]
    #: The server's clock, ms since the epoch; 0 where there was never a policy.
    now_ms: int

    def applying(self, queue: str) -> Policy | None:
        """Return the policy that applies to a queue, None where none does."""
        matching = [policy for policy in self.all if is_meant(queue, policy.pattern)]
        return max(matching, key=lambda one: (one.priority, one.pattern == queue, len(one.pattern), one.pattern), default=None)


class PolicyList:
    """The policies of a broker, over one connection. What they say of a queue is put into force by `Queues.steer`."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys
        self._failures = KeyFailures(logger, "cannot be read, and does not apply", kind="policy")

    def read(self) -> Policies:
        """Return the policies that apply now. One that cannot be read is logged. Raises as `CommandConnection.call` does."""
        fields: list[bytes] = []
        with self._failures.alone("*"):
            fields = self._commands.command("HGETALL", self._keys.policies)
        now_ms = self._now_ms() if fields else 0
        records = dict(zip(fields[::2], fields[1::2], strict=True))
        version = records.pop(VERSION, b"")
        found, ended = [], []
        for pattern, text in sorted(records.items()):
            name = decode_name(pattern)
            with self._failures.alone(name):
                policy = Policy.decode(name, text)
                if 0 < policy.until_ms <= now_ms:
                    ended.append((name, text))
                else:
                    found.append(policy)
        return Policies(version, found, ended, now_ms)

    def all(self) -> list[Policy]:
        """Return the policies that apply now, by pattern. Raises as `read` does."""
        return self.read().all

    def put(
        self, pattern: str, arguments: Mapping[str, object], reason: str, *, priority: int = 0, for_s: float | None = None
    ) -> Policy:
        """Write a policy, in place of one with the same pattern, and return it.

        Raises:
            InvalidArgument: naming the argument or value, and what is allowed.
        """
        owner = f"policy {pattern!r}"
        if not pattern or not arguments or not reason.strip():
            missing = "pattern" if not pattern else "argument" if not arguments else "reason"
            raise InvalidArgument(
                f"{owner} has no {missing}; it needs a pattern, an argument at least, and a reason that tells others why"
            )
        if not LOWEST <= priority <= HIGHEST:
            raise InvalidArgument(f"{owner} has priority {priority!r}; allowed is a whole number from {LOWEST} to {HIGHEST}")
        if for_s is not None and not 0 < for_s <= MAX_DELAY_MS / 1000:
            raise InvalidArgument(
                f"{owner} is for {for_s!r} s; allowed is more than 0 and up to {MAX_DELAY_MS // 1000}, or None for good"
            )
        checked = check_steering(owner, arguments)
        now = self._now_ms()
        until_ms = 0 if for_s is None else now + max(1, int(for_s * 1000))
        policy = Policy(pattern, checked, reason.strip(), priority, since_ms=now, until_ms=until_ms)
        self._write(pattern, policy.encode())
        return policy

    def remove(self, pattern: str) -> bool:
        """Remove a policy; return whether there was one."""
        return self._write(pattern, "")

    def remove_ended(self) -> Policies:
        """Remove the policies whose time is over, and return what is left."""
        found = self.read()
        for pattern, text in found.ended:
            # Not where somebody has prolonged it.
            self._write(pattern, "", text)
        return self.read() if found.ended else found

    def _now_ms(self) -> int:
        # Not at the top: a publisher without policies does not load it.
        from celery_redis_plus.connection.server_time import server_ms

        return server_ms(self._commands)

    def _write(self, pattern: str, record: str, before: bytes = b"") -> bool:
        call = (script("write_policy"), [self._keys.policies], encode_name(pattern), record, before)
        return bool(self._commands.call(*call))
