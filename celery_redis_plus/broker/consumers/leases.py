"""Claims last for the visibility timeout, unless they are extended in time: extends them, and tells what is still unacked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Messages in one script call.
LEASES_A_CALL = 250


class Leases:
    """Extends claims over one connection."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        unacked_messages: UnackedMessages,
        *,
        visibility_timeout_s: float,
        grace_s: float = 0.0,
        may_be_lost: Callable[[float], bool] = lambda _: False,
    ) -> None:
        """Extend what stands in `unacked_messages`, by `visibility_timeout_s` seconds from now.

        `may_be_lost` tells whether this process may have counted as lost since a moment on `clock`, in seconds; never within
        `grace_s` seconds, where that is not 0.
        """
        self._commands = commands
        self._keys = keys
        self._unacked_messages = unacked_messages
        self._timeout_s = visibility_timeout_s
        #: Seconds after its confirmation for which no other consumer can have a message.
        self.certain_s = min(visibility_timeout_s, grace_s or visibility_timeout_s)
        self._may_be_lost = may_be_lost

    def extend(self, messages: Iterable[UnackedMessage]) -> None:
        """Extend the claims of `messages`; those that others hold by now are marked as lost, and logged.

        Raises as `CommandConnection.call`.
        """
        batch: dict[str, list[UnackedMessage]] = {}
        lost: list[UnackedMessage] = []
        size = 0
        try:
            for unacked in messages:
                batch.setdefault(unacked.queue, []).append(unacked)
                size += 1
                if size == LEASES_A_CALL:
                    lost += self._send(batch)
                    batch, size = {}, 0
            if batch:
                lost += self._send(batch)
        finally:
            if lost:
                _tell_lost(lost)

    def holds(self, tag: str) -> bool:
        """Return whether this process may begin to work on a message.

        A process that stood still for longer than the visibility timeout, or was without a connection for longer than
        `connection_lost_grace`, does not know: others may have its messages. Then, and only then, the server is asked, about all
        of them. Messages outside `UnackedMessages` are not its concern. Raises as `CommandConnection.call` does.
        """
        unacked = self._unacked_messages.find(tag)
        return unacked is None or unacked.is_certain(self.certain_s) or self.confirm(unacked)

    def confirm(self, unacked: UnackedMessage) -> bool:
        """Return what `holds` does, of a message that `is_certain` no more. Raises as `holds` does."""
        confirmed_at = unacked.confirmed_at
        is_over = clock.now_s() - confirmed_at > self._timeout_s
        if not unacked.lease_lost and (is_over or self._may_be_lost(confirmed_at)):
            self.extend(chain.from_iterable(self._unacked_messages.by_queue().values()))
        return not unacked.lease_lost

    def _send(self, batch: dict[str, list[UnackedMessage]]) -> list[UnackedMessage]:
        """Extend the claims of a batch; return those that are lost."""
        keys: list[bytes] = []
        arguments: list[Argument] = [int(self._timeout_s * 1000)]
        asked: dict[str, tuple[UnackedMessage, int]] = {}
        for queue, messages in batch.items():
            of = self._keys.queue(queue)
            keys += (of.index, of.message, of.meta)
            arguments.append(len(messages))
            for unacked in messages:
                asked[unacked.tag] = (unacked, unacked.claim)
                arguments += (unacked.tag, unacked.claim)
        asked_at = clock.now_s()
        lost = []
        for tag in self._commands.call(script("extend_leases"), keys, *arguments):
            unacked, claim = asked.pop(tag.decode())
            if self._unacked_messages.mark_lease_lost(unacked.tag, claim) is not None:
                lost.append(unacked)
        for unacked, claim in asked.values():
            if unacked.claim == claim:
                unacked.confirmed_at = asked_at
        return lost


def _tell_lost(lost: Sequence[UnackedMessage]) -> None:
    queues = Counter(unacked.queue for unacked in lost)
    logger.warning(
        "%d message(s) were given to other consumers meanwhile (%s): this process had no connection for longer than "
        "connection_lost_grace, sent no heartbeat for longer than the visibility timeout, or a queue was purged. %d of them are "
        "being worked on here and may run twice; the others are not begun",
        len(lost), ", ".join(f"{queue!r}: {count}" for queue, count in sorted(queues.items())),
        sum(unacked.started for unacked in lost),
    )  # fmt: skip
