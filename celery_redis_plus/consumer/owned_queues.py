"""The exclusive queues that one connection has declared: they live as long as it does."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queues.ownership import Ownership, delete_queue
from celery_redis_plus.connection.forks import this_process

if TYPE_CHECKING:
    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.broker.queues.queues import Queues, Sizes
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.service import MaintenanceService


class OwnedQueues:
    """Declares exclusive queues, has maintenance give signs of life for them, and removes them."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, session: str, *, queues: Queues, bindings: Bindings,
        topology: DeclaredTopology, service: Callable[[], MaintenanceService],
    ) -> None:  # fmt: skip
        """Own none yet.

        Args:
            commands: the session's connection.
            keys: spells the keys.
            session: the session's id.
            queues: declares and deletes queues.
            bindings: those that go with a queue.
            topology: what this process has declared.
            service: returns this process's service, for queues that it keeps alive; a forked child has one of its own.
        """
        self._session = session
        self._queues = queues
        self._bindings = bindings
        self._service = service
        #: Queue -> the process that declared it; a fork leaves them to its parent.
        self._owned: dict[str, int] = {}
        #: Disowns them where the session is collected, and was never closed; None while there are none.
        self._finalizer: weakref.finalize[..., OwnedQueues] | None = None
        self.ownership = Ownership(commands, keys, session, gone=topology.gone, remove=partial(delete_queue, queues, bindings))

    def declare(self, queue: str, arguments: QueueArguments) -> Sizes:
        """Declare an exclusive queue, and keep it alive until the session is over.

        Raises:
            ResourceLocked: another connection was first.
            PreconditionFailed: as `Queues.declare`.
        """
        service = self._service()
        owners = service.topology.owners
        owners[queue] = self.ownership.me
        try:
            # What one that went with its owner's signs of life has left.
            self._queues.clear_away(queue)
            sizes = self._queues.declare(queue, arguments)
            self.ownership.take(queue)
        except BaseException:
            owners.pop(queue, None)
            raise
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, _disown, service, self._session, self._owned)
            self._finalizer.atexit = False
        self._owned[queue] = this_process.pid
        if self._queues.owner_keeps(arguments):
            service.consumed.add(queue, _owner(self._session), self._queues.ttl_ms(arguments))
            service.start()
        return sizes

    def forget(self, queue: str) -> None:
        """Forget an exclusive queue: it was deleted."""
        if self._owned.pop(queue, None) is not None:
            self._service().topology.owners.pop(queue, None)
            self._service().consumed.remove(queue, _owner(self._session))
            self._detach()

    def disown(self) -> None:
        """Give no sign of life any more: the session is over. Its client may take the queues back over the next one."""
        if self._owned:
            _disown(self._service(), self._session, self._owned)
            self._detach()

    def _detach(self) -> None:
        """Drop the finalizer with the last queue: a connection may own one after the other for years."""
        if self._finalizer is not None and not self._owned:
            self._finalizer.detach()
            self._finalizer = None

    def remove(self) -> None:
        """Delete the queues: the session is closed. Raises as `CommandConnection.call` does."""
        owned = [queue for queue, pid in self._owned.items() if pid == this_process.pid]
        self.disown()
        for queue in owned:
            if self.ownership.owns(queue):
                delete_queue(self._queues, self._bindings, queue)


def _owner(session: str) -> str:
    """Return the name under which the owner of exclusive queues watches them."""
    return f"owner {session}"


def _disown(service: MaintenanceService, session: str, owned: dict[str, int]) -> None:
    here = [queue for queue, pid in owned.items() if pid == this_process.pid]
    owned.clear()
    if here:
        service.topology.note_gone(session)
    for queue in here:
        service.topology.owners.pop(queue, None)
        service.consumed.remove(queue, _owner(session))
