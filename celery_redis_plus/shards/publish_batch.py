"""kombu's publish batches over several shards: a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_redis_plus.transport.publish_batch import OnConfirmed, PublishBatch

if TYPE_CHECKING:
    from celery_redis_plus.shards.parts import PartedChannel


class ShardsPublishBatch:
    """The messages that one producer publishes in one batch. kombu calls its methods, from one thread."""

    def __init__(self, channel: PartedChannel, max_size: int, on_confirmed: OnConfirmed | None) -> None:
        """Collect messages for `flush`, at most `max_size` for each shard; others are published on `channel`."""
        self._on_confirmed = on_confirmed
        self.channel = channel
        self._max_size = max_size
        self._batches: dict[int, PublishBatch] = {}
        self._over = False

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """Take a message for the batch, or publish it now, behind those that wait. Raises as `PublishBatch.publish` does."""
        if self._over:
            raise RuntimeError("the publish batch was closed, or discarded")
        if exchange:
            self.flush()
            duplicate_of = self.channel.basic_publish(message, exchange=exchange, routing_key=routing_key, **kwargs)
            if self._on_confirmed is not None:
                self._on_confirmed(message, duplicate_of)
            return duplicate_of
        part = self.channel.of_queue(routing_key)
        number = part.number
        batch = self._batches.get(number)
        if batch is None:
            batch = self._batches[number] = part.create_publish_batch(self._max_size, self._on_confirmed)
            batch.flush_before = self.flush
        return batch.publish(message, "", routing_key, **kwargs)

    def flush(self) -> None:
        """Publish what waits, on all shards. Raises as `PublishBatch.flush` does, the first error of all shards."""
        self._of_each(PublishBatch.flush)

    def discard(self) -> None:
        """Forget what waits: the block that published it ended by an exception."""
        self._over = True
        self._of_each(PublishBatch.discard)

    def close(self) -> None:
        """End the batch."""
        self._over = True
        self._of_each(PublishBatch.close)

    def _of_each(self, method: Callable[[PublishBatch], None]) -> None:
        failure: Exception | None = None
        for batch in self._batches.values():
            try:
                method(batch)
            except Exception as error:  # noqa: BLE001 - each shard has an outcome of its own
                failure = failure or error
        if failure is not None:
            raise failure
