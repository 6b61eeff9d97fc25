"""Sends each message once by its identity, however often and from any process it is sent again: for pipelines that repeat work.

The identity is the message's `x-deduplication-id`, which the publish script checks in the step that stores the message.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import kombu

from celery_redis_plus.broker.arguments.deduplication import ID, TTL
from celery_redis_plus.connection.broker_at import prefix_at
from celery_redis_plus.errors import PublishRefused
from celery_redis_plus.event_log.metadata import SOURCE_ID

#: kombu would take its own transport for these.
_SCHEMES = {"redis": "redisplus", "rediss": "redispluss"}
#: Seconds between two attempts to publish into a full queue.
FULL_QUEUE_PAUSE_S = 0.5


class OnceSender:
    """One connection that sends; a context manager.

    Args:
        url: the broker's URL.
        prefix: the application's `global_keyprefix`, if it is not in the URL.
        remember_s: seconds for which the broker remembers an identity; each costs a small key for that time.
        patience_s: seconds to retry a full queue before its refusal is an error.

    Raises:
        OptionError: URL and `prefix` name two applications.
    """

    def __init__(self, url: str, *, prefix: str = "", remember_s: float = 604_800, patience_s: float = 600) -> None:
        scheme, separator, rest = url.partition("://")
        options = {"global_keyprefix": prefix_at(url, prefix)}
        self._connection = kombu.Connection(f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}", transport_options=options)
        self._remember_ms = int(remember_s * 1000)
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
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
    ) -> bool:
        """Put a message into `queue`, unless this identity was put there within `remember_s`; return whether it was put.

        `source_id` is the id of the message that it is made from: its lifecycle events have it.

        Raises:
            PublishRefused: the queue is full and stays so, or does not accept this type.
            redis.exceptions.RedisError: as `error_translation.translate` names it; sending again is safe.
        """
        deadline = time.monotonic() + self._patience_s
        origin = {SOURCE_ID: source_id} if source_id else {}
        while True:
            message = {
                "body": body,
                "content-encoding": content_encoding,
                "content-type": content_type,
                "headers": {**(headers or {}), ID: identity, TTL: self._remember_ms},
                "properties": {"delivery_info": {}, "delivery_mode": 2, **origin, **(properties or {})},
            }
            try:
                duplicate_of = self._connection.default_channel.basic_publish(message, exchange="", routing_key=queue)
            except PublishRefused:
                if time.monotonic() > deadline:
                    raise
                # Backpressure: the queue's consumers decide the pace.
                time.sleep(FULL_QUEUE_PAUSE_S)
            else:
                return duplicate_of is None
