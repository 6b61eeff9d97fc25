"""What has a method for one queue, over several lanes: each call goes to the lane of its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.connection.lanes import lane_of
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def of_queue(of_lanes: Sequence[T], name: str) -> T:
    """Return that of the lane of a queue, or of a fanout exchange. Raises as `check_queue_name` does."""
    return of_lanes[lane_of(check_queue_name(name), len(of_lanes))]


class ByQueue:
    """Has the methods of an object of each lane, and calls them in the lane of their first argument: a queue, or a letter."""

    def __init__(self, of_lanes: Sequence[Any]) -> None:
        """Use one of each lane."""
        #: Those of all lanes.
        self.of_lanes = of_lanes

    def of(self, queue: str) -> Any:
        """Return that of the lane of a queue."""
        return of_queue(self.of_lanes, queue)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method by its name."""
        return lambda first, *args, **kwargs: getattr(self.of(getattr(first, "queue", first)), name)(first, *args, **kwargs)


class LaneMessages(ByQueue):
    """The `Messages` of all lanes."""

    def move(self, queue: str, tag: str, target: str) -> Any:
        """Move a message to another queue, as `Messages.move`. Raises InvalidArgument where that is in another lane."""
        if self.of(queue) is not self.of(target):
            if self.of(queue).find(queue, tag) is None:
                return None
            raise InvalidArgument(
                f"queue {target!r} is in another lane than queue {queue!r} (cluster_lanes); allowed is a queue of the same lane"
            )
        return self.of(queue).move(queue, tag, target)
