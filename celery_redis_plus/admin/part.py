"""What the parts of `BrokerAdmin` have in common: that class makes it, and each part is about one subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.errors import QueueNotFound

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.audit import Audit
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import FanoutKeys, Keys
    from celery_redis_plus.options import Options


class AdminPart:
    """One connection to a broker, as the parts use it."""

    _commands: CommandConnection
    _keys: Keys
    _options: Options
    _queues: Queues
    #: Who did what.
    audit: Audit

    def check_queue(self, queue: str) -> None:
        """Raise QueueNotFound where there is no such queue."""
        if not self._queues.exists(queue):
            raise QueueNotFound(f"there is no queue {queue!r}")

    def _fanout_keys(self, exchange: str) -> FanoutKeys:
        """Return the keys of a fanout exchange, as the broker's options spell them."""
        return self._keys.fanout(exchange, self._options.stream_prefix(self._commands.connector.address.db))
