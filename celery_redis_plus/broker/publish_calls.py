"""The calls of the scripts that publish to queues: packed but for the message, and kept for the queues published to last."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queue_arguments import check_queue_name
from celery_redis_plus.scripts import script
from celery_redis_plus.topology.packing import CallTemplate

if TYPE_CHECKING:
    from celery_redis_plus.keys import Keys, QueueKeys

#: Queues, those published to last, whose packed call is kept.
KNOWN_CALLS = 1024
#: Arguments that every script for queues has: payload, rank, eta, number, retry, window, life, and last the description.
COMMON = 8


class PublishCall:
    """One script that publishes to queues."""

    def __init__(self, name: str, keys: Keys, of_queue: Callable[[QueueKeys], tuple[bytes, ...]], more: int = 0) -> None:
        """Call the script `name`.

        Args:
            name: the script's.
            keys: spells the keys.
            of_queue: the script's keys before the producer's record.
            more: how many arguments it has besides the common ones.
        """
        self.script = script(name)
        self._keys = keys
        self._of_queue = of_queue
        self._arguments = COMMON + more
        #: As `template`, kept.
        self.known = lru_cache(maxsize=KNOWN_CALLS)(self.template)

    def template(self, queue: str, producer: bytes, *staged: bytes, more: int = 0) -> CallTemplate:
        """Return the call with its keys, for `more` arguments; `staged` is the key of a body that goes round the script.

        Raises:
            InvalidQueueName: no queue can be called so.
        """
        keys = self._keys.queue(check_queue_name(queue))
        return CallTemplate(self.script.sha, (*self._of_queue(keys), keys.producer + producer, *staged), self._arguments + more)
