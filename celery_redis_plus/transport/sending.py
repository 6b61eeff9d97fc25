"""Sends messages once by their identity, however often and by whomever they are sent again: for pipelines that repeat work.

The publish script remembers a producer and its number; here each message is a producer of its own, whose name follows from the
identity, and every try counts as a retry. docs/design/0003-idempotent-publish.md says how that is exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import kombu

from celery_redis_plus.broker.publishing import Attempt
from celery_redis_plus.errors import PublishRefused
from celery_redis_plus.transport.publishing import ATTEMPT

#: kombu would take its own transport for these.
_SCHEMES = {"redis": "redisplus", "rediss": "redispluss"}
#: Seconds between two tries to put a message into a full queue.
FULL_QUEUE_PAUSE_S = 0.5


class Sender:
    """One connection that sends; a context manager.

    Args:
        url: the broker's URL.
        prefix: the application's `global_keyprefix`.
        remember_s: seconds for which the broker knows an identity again. Each costs about 300 bytes for so long.
        patience_s: seconds to wait for room in a queue with a limit, before its refusal is an error.
    """

    def __init__(self, url: str, *, prefix: str = "", remember_s: float = 604_800, patience_s: float = 600) -> None:
        scheme, separator, rest = url.partition("://")
        options = {"global_keyprefix": prefix, "publish_dedup_window": remember_s}
        self._connection = kombu.Connection(f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}", transport_options=options)
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
    ) -> None:
        """Put a message into `queue`, unless one of this identity was put there within `remember_s`.

        Raises:
            PublishRefused: the queue is full and stays so, or does not accept this type.
            redis.exceptions.RedisError: as `errors.translate` names it; sending again is safe.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            attempt = Attempt()
            attempt.doubt(queue, b"once." + identity.encode(), 1)
            message = {
                "body": body,
                "content-encoding": content_encoding,
                "content-type": content_type,
                "headers": dict(headers or {}),
                "properties": {"delivery_info": {}, "delivery_mode": 2, **(properties or {}), ATTEMPT: attempt},
            }
            try:
                self._connection.default_channel.basic_publish(message, exchange="", routing_key=queue)
            except PublishRefused:
                if time.monotonic() > deadline:
                    raise
                # Backpressure: whoever consumes the queue decides how fast this goes.
                time.sleep(FULL_QUEUE_PAUSE_S)
            else:
                return
