"""Claims last for the visibility timeout, unless they are extended in time: extends them, and tells what is still unacked."""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
    """Extends claims over one wire."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, unacked_messages: UnackedMessages, *, visibility_timeout_s: float
    ) -> None:
        """Extend what stands in `unacked_messages`, by `visibility_timeout_s` seconds from now."""
        self._commands = commands
        self._keys = keys
        self._unacked_messages = unacked_messages
        self._timeout_s = visibility_timeout_s

    def extend(self, messages: Iterable[UnackedMessage]) -> None:
        """Extend the claims of `messages`; those that others hold by now are marked as lost, and logged.

        Raises as `CommandConnection.call`.
        """
        batch: dict[str, list[UnackedMessage]] = {}
        size = 0
        for unacked in messages:
            batch.setdefault(unacked.queue, []).append(unacked)
            size += 1
            if size == LEASES_A_CALL:
                self._send(batch)
                batch, size = {}, 0
        if batch:
            self._send(batch)

    def holds(self, tag: str) -> bool:
        """Return whether this process may begin to work on a message.

        A process that stood still for longer than the visibility timeout does not know: others may have its messages. Then, and
        only then, the server is asked. What does not stand in `UnackedMessages` is nobody else's business.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it.
        """
        unacked = self._unacked_messages.find(tag)
        return unacked is None or self.still_holds(unacked)

    def still_holds(self, unacked: UnackedMessage) -> bool:
        """Return what `holds` does, of a message that stands in `UnackedMessages`. Raises as `holds` does."""
        if not unacked.lease_lost and clock.now_s() - unacked.confirmed_at > self._timeout_s:
            self.extend([unacked])
        return not unacked.lease_lost

    def _send(self, batch: dict[str, list[UnackedMessage]]) -> None:
        keys: list[bytes] = []
        arguments: list[Argument] = [int(self._timeout_s * 1000)]
        asked: dict[str, tuple[UnackedMessage, int]] = {}
        for queue, messages in batch.items():
            of = self._keys.queue(queue)
            keys += (of.index, of.message)
            arguments.append(len(messages))
            for unacked in messages:
                asked[unacked.tag] = (unacked, unacked.claim)
                arguments += (unacked.tag, unacked.claim)
        asked_at = clock.now_s()
        for tag in self._commands.call(script("extend_leases"), keys, *arguments):
            unacked, claim = asked.pop(tag.decode())
            if self._unacked_messages.mark_lease_lost(unacked.tag, claim) is not None:
                logger.warning(
                    "message %s of queue %r was given to another consumer: this process gave no sign of life for longer than "
                    "the visibility timeout, or the queue was purged; it may run twice",
                    unacked.tag, unacked.queue,
                )  # fmt: skip
        for unacked, claim in asked.values():
            if unacked.claim == claim:
                unacked.confirmed_at = asked_at
