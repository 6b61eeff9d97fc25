"""Where messages without a recipient are kept: the dead letters of one lasting queue of our own.

A dead letter belongs to the queue that it died in; these never reached one. Listing, replaying and deleting works as for any
other queue: `celery-redis-plus dead-letters list celery_redis_plus.undelivered`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_redis_plus.stored_message import BODY_SEPARATOR, Outgoing, UnreadableMessageError, read_envelope

if TYPE_CHECKING:
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt
    from celery_redis_plus.broker.publishing.publisher import Publisher

#: The queue.
UNDELIVERED = "celery_redis_plus.undelivered"
#: The header of a dead letter that was meant for one recipient of several.
RECIPIENT = "x-recipient"
#: Reasons: no queue takes it; the exchange has no subscriber; a recipient rejected it, or did not answer in time.
UNROUTABLE, NO_SUBSCRIBERS, REJECTED, ACK_TIMEOUT = "unroutable", "no_subscribers", "rejected", "ack_timeout"


class UnroutableMessages:
    """Keeps messages without a recipient."""

    def __init__(self, publisher: Publisher, *, keep: int) -> None:
        """Keep at most `keep` messages by `publisher`; the oldest go first, and are counted."""
        self._publisher = publisher
        self._keep = keep

    def keep(self, message: Outgoing, attempt: PublishAttempt, reason: str) -> None:
        """Keep a message, once under one `attempt`. Raises as `Publisher.to_dead_letters` does."""
        self._publisher.to_dead_letters(UNDELIVERED, message, attempt, reason, self._keep)

    def count(self) -> None:
        """Count a message that is not kept: no recipient misses it."""
        self._publisher.count(UNDELIVERED, "unroutable")

    def keep_for(self, recipient: str, payload: bytes, attempt: PublishAttempt, reason: str) -> None:
        """Keep a broadcast for one recipient, who stands in the header `x-recipient`; `payload` is as the stream has it.

        One that cannot be read is kept as it is.
        """
        envelope, _, body = payload.partition(BODY_SEPARATOR)
        with suppress(UnreadableMessageError):
            data = read_envelope(envelope)
            data["headers"][RECIPIENT] = recipient
            envelope = json.dumps(data, separators=(",", ":")).encode("ascii")
        self.keep(Outgoing(envelope, body, rank=255), attempt, reason)
