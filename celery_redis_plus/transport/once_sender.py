"""Sends each message once by its identity, however often and from any process it is sent again: for pipelines that repeat work.

The identity is the message's `x-deduplication-id`, which the publish scripts check in the step that stores the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import kombu

from celery_redis_plus.broker.arguments.deduplication import ID, TTL
from celery_redis_plus.broker.publishing.publish_batch import MESSAGES_A_CALL
from celery_redis_plus.connection.broker_at import prefix_at
from celery_redis_plus.errors import InvalidArgument, PublishRefused, QueueFull
from celery_redis_plus.event_log.metadata import SOURCE_ID
from celery_redis_plus.transport import compat
from celery_redis_plus.transport.url_aliases import our_url

logger = logging.getLogger(__name__)

#: Seconds between two attempts to publish into a full queue.
FULL_QUEUE_PAUSE_S = 0.5
#: Seconds of waiting after which it is told for the first time, and the longest ones between two times: they double.
FIRST_NOTICE_S, LONGEST_NOTICE_S = 2.0, 60.0


class OnceSender:
    """One connection that sends in batches; a context manager, which sends the last ones if its block has not failed.

    Args:
        url: the broker's URL.
        prefix: the application's `global_keyprefix`, if it is not in the URL.
        remember_s: seconds for which the broker remembers an identity; each costs a small key for that time.
        patience_s: seconds to retry a full queue before its refusal is an error; they begin anew when it takes a message.
        batch: how many messages wait at most until they are sent, in one call for those of a queue.

    Raises:
        OptionError: URL and `prefix` name two applications.
    """

    def __init__(
        self, url: str, *, prefix: str = "", remember_s: float = 604_800, patience_s: float = 600, batch: int = MESSAGES_A_CALL
    ) -> None:  # fmt: skip
        self._connection = kombu.Connection(our_url(url), transport_options={"global_keyprefix": prefix_at(url, prefix)})
        self._remember_ms = int(remember_s * 1000)
        self._patience_s = patience_s
        self._batch = batch
        #: Messages that are not confirmed yet, in their order, and their queues; by the ids of the dicts.
        self._waiting: dict[int, tuple[dict[str, Any], str]] = {}
        #: How many messages are stored, and how many were not, as the broker knew their identities.
        self.stored, self.known = 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; what still waits is not sent."""
        self._waiting.clear()
        self._connection.release()

    def send(
        self,
        queue: str,
        identity: str,
        body: bytes | str,
        *,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        content_encoding: str = "utf-8",
        source_id: str = "",
    ) -> None:
        """Put a message into `queue` with the next `flush`, unless this identity was put there within `remember_s`.

        `source_id` is the id of the message that it is made from: its lifecycle events have it. Raises as `flush`, which it calls
        when the batch is full.
        """
        origin = {SOURCE_ID: source_id} if source_id else {}
        message = {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": {**(headers or {}), ID: identity, TTL: self._remember_ms},
            "properties": {"delivery_info": {}, "delivery_mode": 2, **origin, **(properties or {})},
        }
        self._waiting[id(message)] = (message, queue)
        if len(self._waiting) >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Send what waits, and return when the broker has or knows it. A warning tells of a queue that stays full meanwhile.

        Raises:
            PublishRefused: a queue is full and stays so, or does not accept this type.
            InvalidArgument: a full queue makes dead letters of what it refuses.
            redis.exceptions.RedisError: as `error_translation.translate` names it; sending again is safe.
        """
        began = time.monotonic()
        deadline, notice_s = began + self._patience_s, FIRST_NOTICE_S
        notice_at = began + notice_s
        while self._waiting:
            before = len(self._waiting)
            try:
                self._publish()
            except PublishRefused as error:
                if isinstance(error, QueueFull) and error.is_dead_letter:
                    # Each retry would be one more.
                    raise InvalidArgument(
                        f"{error}. Its x-overflow is 'reject-publish-dlx', where nothing can wait for a full queue to have room; "
                        "allowed are 'reject-publish', 'block' and 'drop-head'"
                    ) from error
                now = time.monotonic()
                if len(self._waiting) < before:
                    deadline = now + self._patience_s
                elif now > deadline:
                    raise
                if now >= notice_at:
                    left_s = max(0.0, deadline - now)
                    logger.warning("%s; %d message(s) wait for it, for up to %.0f s more", error, len(self._waiting), left_s)
                    notice_s = min(2 * notice_s, LONGEST_NOTICE_S)
                    notice_at = now + notice_s
                # Backpressure: the queue's consumers decide the pace.
                time.sleep(FULL_QUEUE_PAUSE_S)

    def _publish(self) -> None:
        batch = self._connection.default_channel.create_publish_batch(self._batch, on_confirmed=self._confirmed)
        try:
            try:
                for message, queue in list(self._waiting.values()):
                    batch.publish(message, "", queue)
            finally:
                # Those before one that is refused.
                batch.flush()
        except compat.batch_publish_error_class() as error:
            raise error.__cause__ or error from None

    def _confirmed(self, message: dict[str, Any], duplicate_of: str | None) -> None:
        del self._waiting[id(message)]
        if duplicate_of is None:
            self.stored += 1
        else:
            self.known += 1
