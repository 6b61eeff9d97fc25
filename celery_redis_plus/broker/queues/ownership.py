"""Exclusive queues: each belongs to the connection that declared it, and goes with it.

The owner stands in the queue's record: the session's id, and the server's number and address of its connection (after a restart
the server gives the same numbers again). An owner is gone as soon as the server has closed that connection (its process died),
or where this process knows that the session is over. What the server cannot see, such as a frozen host, ends with the owner's
signs of life: only they move the record's expiry on.
Source of the rules: AMQP 0-9-1, queue.declare, and https://www.rabbitmq.com/docs/queues#exclusive-queues
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.errors import ResourceLocked
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)


class Ownership:
    """Exclusive queues, as one session sees them."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, session: str, *, gone: Container[str], remove: Callable[[str], object]
    ) -> None:
        """Use `commands`.

        Args:
            commands: the session's connection.
            keys: spells the keys.
            session: the session's id.
            gone: ids of sessions of this process that are over.
            remove: deletes a queue and its bindings.
        """
        self._commands = commands
        self._keys = keys
        self._session = session
        self._gone = gone
        self._remove = remove
        self._me = b""

    @property
    def me(self) -> bytes:
        """What the record of a queue of this session says. Raises as `CommandConnection.command` does."""
        if not self._me:
            self._me = b"%b %b" % (self._session.encode(), _number_and_address(self._commands.command("CLIENT", "INFO")))
        return self._me

    def check(self, queue: str, *, declares: bool = False) -> None:
        """See that no other connection has the queue. One whose connection is gone is removed here.

        Args:
            queue: its name.
            declares: a session of this process that is over leaves its queue, with its messages, to the next that declares it:
                the same client has connected again.

        Raises:
            ResourceLocked: another connection has it.
            InvalidQueueName: no queue can be called so.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        meta = self._keys.queue(check_queue_name(queue)).meta
        owner: bytes | None = self._commands.command("HGET", meta, "owner")
        if owner is None:
            return
        session, _, client = owner.partition(b" ")
        if session == self._session.encode():
            return
        ours = session.decode() in self._gone
        if ours or not self._is_connected(client):
            if ours and declares and self._own(queue, owner):
                return
            if self.remove_with(queue, owner):
                return
        raise ResourceLocked(f"cannot obtain exclusive access to locked queue {queue!r}: it belongs to another connection")

    def remove_with(self, queue: str, owner: bytes) -> bool:
        """Remove the queue of an owner that is gone; return False where it has another one by now. Raises as `check`."""
        if not self._own(queue, owner):
            return False
        logger.info(
            "the connection that had the exclusive queue %r is gone, and the queue with it", queue, extra={"queue": queue}
        )
        self._remove(queue)
        return True

    def take(self, queue: str) -> None:
        """See that a queue that was declared just now is this session's; one without an owner becomes so.

        Raises:
            ResourceLocked: another connection was first.
        """
        if not self.owns(queue) and not self._own(queue, b""):
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue {queue!r}: another connection declared it first"
            )

    def owns(self, queue: str) -> bool:
        """Return whether the queue is this session's. Raises as `CommandConnection.command` does."""
        return bool(self._commands.command("HGET", self._keys.queue(queue).meta, "owner") == self.me)

    def _own(self, queue: str, before: bytes) -> bool:
        """Take a queue from its owner before, or one without an owner; return False where another connection was first."""
        keys = self._keys.queue(queue)
        return bool(self._commands.call(script("own_queue"), [keys.meta, keys.with_credit], before, self.me))

    def _is_connected(self, client: bytes) -> bool:
        try:
            found: bytes = self._commands.command("CLIENT", "LIST", "ID", client.split()[0])
            return bool(found) and _number_and_address(found) == client
        except RedisError as error:
            # The user may not ask: the queue goes when its owner's signs of life end.
            logger.debug("CLIENT LIST is refused: %s", error)
            return True


def delete_queue(queues: Queues, bindings: Bindings, queue: str) -> None:
    """Delete a queue and its bindings. Raises as `CommandConnection.call` does."""
    queues.delete(queue)
    bindings.unbind_queues([queue])


def _number_and_address(client: bytes) -> bytes:
    """Return these two of a line of CLIENT LIST; source: https://valkey.io/commands/client-list."""
    fields = dict(field.split(b"=", 1) for field in client.split() if b"=" in field)
    return b"%b %b" % (fields[b"id"], fields[b"addr"])
