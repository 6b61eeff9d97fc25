"""kombu's publish batches over several lanes: a batch for each lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_redis_plus.broker.lanes.by_queue import of_queue
from celery_redis_plus.transport.publish_batch import PublishBatch


class LanePublishBatch:
    """The messages that one producer publishes in one batch. kombu calls its methods, from one thread."""

    def __init__(self, channel: Any, batches: Sequence[PublishBatch]) -> None:
        """Collect messages for `flush`, in a batch for each lane; others are published on `channel`."""
        self.channel = channel
        self._batches = batches
        for batch in batches:
            batch.flush_before = self.flush

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """Take a message for the batch, or publish it now, behind those that wait. Raises as `PublishBatch.publish` does."""
        if not exchange:
            self.channel.check_open()
            return of_queue(self._batches, routing_key).publish(message, "", routing_key, **kwargs)
        self.flush()
        return self.channel.basic_publish(message, exchange=exchange, routing_key=routing_key, **kwargs)

    def flush(self) -> None:
        """Publish what waits, in all lanes. Raises as `PublishBatch.flush` does, the first error of all lanes."""
        self._of_each(PublishBatch.flush)

    def discard(self) -> None:
        """Forget what waits: the block that published it ended by an exception."""
        self._of_each(PublishBatch.discard)

    def close(self) -> None:
        """End the batch."""
        self._of_each(PublishBatch.close)

    def _of_each(self, method: Callable[[PublishBatch], None]) -> None:
        failure: Exception | None = None
        for batch in self._batches:
            try:
                method(batch)
            except Exception as error:  # noqa: BLE001 - each lane has an outcome of its own
                failure = failure or error
        if failure is not None:
            raise failure
