"""kombu's message as our channels deliver it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import base

from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.events import is_logged
from celery_redis_plus.stored_message import BODY_SEPARATOR
from celery_redis_plus.transport import codec

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.last_error import Failure
    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.broker.fanout.entries import Entry
    from celery_redis_plus.stored_message import Claimed


class Message(base.Message):
    """A delivered message; `body` is bytes, as it was published."""

    def __init__(
        self, payload: dict[str, Any], channel: Any = None, accept: Any = None, unacked: Unacked | None = None, **kwargs: Any
    ) -> None:  # fmt: skip
        """Build the message of a payload: kombu's wire format as a dict, the body in it unencoded; `unacked` is its record."""
        self._unacked = unacked if isinstance(unacked, UnackedMessage) else None
        properties, get = payload["properties"], payload.get
        base.Message.__init__(
            self, get("body"), properties["delivery_tag"], get("content-type"), get("content-encoding"),
            properties.get("delivery_info"), properties, get("headers"), "utf-8", accept, channel, **kwargs,
        )  # fmt: skip

    #: The queue it came by; None outside deliveries of a consumer.
    queue: str | None = None
    #: Its task was given to the worker's pool, which runs it whatever becomes of the connection.
    given_to_pool = False

    @property
    def waits_in_pool(self) -> bool:
        """Whether its task was given to the worker's pool and has not begun there."""
        return self.given_to_pool and not (self._unacked is not None and self._unacked.started)

    @property
    def given_back(self) -> bool:
        """Whether it was sent back to its queue, or is about to be."""
        return self._unacked is not None and self._unacked.given_back

    def begin(self) -> None:
        """Note that the work on it begins: the server is told where a delivery of it failed before. From any thread."""
        if self._unacked is not None:
            self._unacked.started = True
            if self._unacked.failed_before:
                self.channel.session.acknowledger.begin(self._unacked)

    def note_outcome(self, reason: str, failure: Failure | None = None) -> None:
        """Note how the work on it ended, for its settlement: a reason of `events.REASONS`, and the exception."""
        if self._unacked is not None:
            self._unacked.note_outcome(reason, failure)

    def tell_failed(self, reason: str, failure: Failure | None) -> None:
        """Tell the log that the work on it failed after it was acked early; nothing where its events are not written."""
        if self.channel is not None and self.queue is not None and is_logged(self.delivery_tag):
            self.channel.session.acknowledger.tell_failed(self.queue, self.delivery_tag, reason, failure)

    def mark_failed(self) -> None:
        """Note that its work failed: sent back with requeue, it counts towards the delivery limit."""
        if self._unacked is not None:
            self._unacked.failed = True

    def mark_acked_early(self) -> None:
        """Note that it is acked before the work on it begins: for the event of its ack, which may leave a moment later."""
        if self._unacked is not None:
            self._unacked.note_outcome("early")
            self._unacked.acked_early = True

    def serializable(self) -> dict[str, Any]:
        """Return the payload again, as plain data."""
        headers = dict(self.headers)
        # The body is decompressed by now.
        headers.pop("compression", None)
        return {
            "body": self.body,
            "properties": self.properties,
            "content-type": self.content_type,
            "content-encoding": self.content_encoding,
            "headers": headers,
        }


def broadcast_payload(entry: Entry, tag: str, redelivered: bool) -> dict[str, Any]:
    """Return a broadcast as kombu's payload. Every call makes a new one: each consumer may change its own."""
    envelope, _, body = entry[1][3].partition(BODY_SEPARATOR)
    payload = codec.load(envelope)
    payload["body"] = body
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    properties["delivery_info"]["redelivered"] = redelivered
    return payload


def payload_of(claimed: Claimed) -> dict[str, Any]:
    """Return a claimed message as kombu's payload, with what this delivery adds: tag and `redelivered`."""
    payload = codec.load(claimed.envelope)
    payload["body"] = claimed.body or b""
    properties = payload["properties"]
    properties["delivery_tag"] = claimed.tag
    properties["delivery_info"]["redelivered"] = claimed.redelivered
    if claimed.redelivered:
        headers = payload["headers"]
        headers["x-acquired-count"] = claimed.claim
        headers["x-delivery-count"] = claimed.failures
    return payload
