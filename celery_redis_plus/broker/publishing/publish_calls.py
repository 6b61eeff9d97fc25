"""The calls of the scripts that publish to queues."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.command_encoding import pack_call
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.keys import Keys, QueueKeys

#: Queues, those published to last, whose checked keys are kept.
KNOWN_QUEUES = 1024


class PublishCall:
    """One script that publishes to queues."""

    def __init__(self, name: str, keys: Keys, of_queue: Callable[[QueueKeys], tuple[bytes, ...]]) -> None:
        """Call the script `name`; `of_queue` returns its keys before the producer's record, and `keys` spells them."""
        self.script = script(name)
        self._keys = keys
        self._of_queue = of_queue
        self._known = lru_cache(maxsize=KNOWN_QUEUES)(self._keys_of)

    def _keys_of(self, queue: str, producer: bytes) -> tuple[bytes, ...]:
        keys = self._keys.queue(check_queue_name(queue))
        return (*self._of_queue(keys), keys.producer + producer)

    def pack(self, queue: str, producer: bytes, staged: tuple[bytes, ...], arguments: tuple[Any, ...]) -> bytes:
        """Return the packed call; `staged` has the key of a body that was sent before the script.

        Raises:
            InvalidQueueName: no queue can be called so.
        """
        return pack_call(self.script.sha, (*self._known(queue, producer), *staged), arguments)
