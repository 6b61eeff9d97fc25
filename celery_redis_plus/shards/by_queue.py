"""What has a method for one queue, over several shards: each call goes to the shard of its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def of_queue(of_shards: Sequence[T], name: str) -> T:
    """Return that of the shard of a queue. Raises as `check_queue_name` does."""
    return of_shards[shard_of(check_queue_name(name), len(of_shards))]


class ByQueue:
    """Has the methods of an object of each shard, and calls them in the shard of their first argument: a queue, or a letter."""

    def __init__(self, of_shards: Sequence[Any]) -> None:
        """Use one of each shard."""
        #: Those of all shards.
        self.of_shards = of_shards

    def of(self, queue: str) -> Any:
        """Return that of the shard of a queue."""
        return of_queue(self.of_shards, queue)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method by its name."""
        return lambda first, *args, **kwargs: getattr(self.of(getattr(first, "queue", first)), name)(first, *args, **kwargs)


class ShardMessages(ByQueue):
    """The `Messages` of all shards."""

    def move(self, queue: str, tag: str, target: str) -> Any:
        """Move a message to another queue, as `Messages.move`. Raises InvalidArgument where that is in another shard."""
        if self.of(queue) is not self.of(target):
            if self.of(queue).find(queue, tag) is None:
                return None
            raise InvalidArgument(
                f"queue {target!r} is in another shard than queue {queue!r}; allowed is a queue of the same shard"
            )
        return self.of(queue).move(queue, tag, target)
