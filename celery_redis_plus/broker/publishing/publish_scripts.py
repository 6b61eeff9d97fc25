"""The scripts that publish to queues, and their keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.keys import Keys, QueueKeys
    from celery_redis_plus.scripts import Script

#: Queues, those published to last, whose checked keys are kept.
MAX_ENCODED_QUEUES = 1024


class PublishScript:
    """One script that publishes to queues."""

    def __init__(self, name: str, keys: Keys, of_queue: Callable[[QueueKeys], tuple[bytes, ...]]) -> None:
        """Know the script `name`; `of_queue` returns its keys before the producer's record, and `keys` spells them."""
        self._name = name
        self._spelled = keys
        self._of_queue = of_queue
        #: Returns the script's keys for a queue's name and a producer's id. Raises InvalidQueueName where none can be called so.
        self.keys = lru_cache(maxsize=MAX_ENCODED_QUEUES)(self._keys_of)

    @fork_safe_property
    def script(self) -> Script:
        """The script; composed when it is called first."""
        return script(self._name)

    def _keys_of(self, queue: str, producer: bytes) -> tuple[bytes, ...]:
        keys = self._spelled.queue(check_queue_name(queue))
        return (*self._of_queue(keys), keys.producer + producer)
