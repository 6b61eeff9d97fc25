"""What a queue's arguments limit: how much it holds, what becomes of more, which types of message it accepts.

What counts, per limit, is decided by the scripts (`lua/include/release_capacity.lua`):

* `x-max-length`: ready and delayed messages (RabbitMQ has no delayed ones; there the ready ones count);
* `x-max-pending`: these and the unacked ones;
* `x-max-length-bytes`: the bytes of headers and bodies of all three, because an unacked message fills the server's memory as
  much as a ready one. (RabbitMQ counts the bodies of ready ones.)

Source of names and meanings: https://www.rabbitmq.com/docs/maxlength; `block`, `x-max-pending`, `x-throttle` and
`x-accept-types` are ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.field_tables import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one queue."""

    max_length: int | None = None
    max_bytes: int | None = None
    max_pending: int | None = None
    overflow: str = "drop-head"
    #: True: from the publisher's own threshold on; a number: from this share of free room on.
    throttle: bool | float = False
    #: Patterns of task names, content types and message types; empty: everything.
    accepts: tuple[str, ...] = ()

    @classmethod
    def of(cls, arguments: QueueArguments) -> Limits:
        """Return the limits that a queue was declared with."""
        table = arguments.arguments

        def whole(key: str) -> int | None:
            value = table.get(key)
            return value if isinstance(value, int) else None

        overflow, throttle, accepts = table.get("x-overflow"), table.get("x-throttle"), table.get("x-accept-types")
        return cls(
            max_length=whole("x-max-length"),
            max_bytes=whole("x-max-length-bytes"),
            max_pending=whole("x-max-pending"),
            overflow=overflow if isinstance(overflow, str) else "drop-head",
            throttle=throttle if isinstance(throttle, bool | int | float) else False,
            accepts=tuple(str(pattern) for pattern in accepts) if isinstance(accepts, list | tuple) else (),
        )

    @property
    def reports_every(self) -> int:
        """After how many broadcasts a subscriber of an exchange with these limits says how far it is.

        Small beside the limit: a publisher that waits is woken before the subscriber has run dry.
        """
        return max(1, (self.max_pending or 0) // 10)

    def encode(self) -> str:
        """Return the field `limited` of the queue's record, which the scripts read; '' for a queue without limits.

        `length bytes pending overflow threshold types`: `-` where there is none, `*` for the publisher's own threshold. The
        types stand there as a hash: publishers who know others see that they have to look again.
        """
        numbers = (self.max_length, self.max_bytes, self.max_pending)
        if all(number is None for number in numbers) and not self.accepts:
            return ""
        throttle = "*" if self.throttle is True else f"{self.throttle:g}" if self.throttle else "-"
        types = "-"
        if self.accepts:
            types = hashlib.sha1(to_text(list(self.accepts)).encode(), usedforsecurity=False).hexdigest()[:12]
        return " ".join([*("-" if number is None else str(number) for number in numbers), self.overflow, throttle, types])

    def accept(self, names: Iterable[str | None]) -> bool:
        """Return whether a message is accepted that has these names: its task's, its content type, its type.

        A pattern may hold `*` (any text), `?` (one character) and `[…]`; case counts. One pattern that matches one of the
        names is enough.
        """
        return not self.accepts or any(fnmatchcase(name, pattern) for name in names if name for pattern in self.accepts)
