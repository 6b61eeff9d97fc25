"""Tracked deliveries as channels see them: published with somebody waiting for answers, and answered by consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_redis_plus.broker.arguments.eta import eta_of
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import TrackedRecipient
from celery_redis_plus.broker.dead_letters.unroutable import REJECTED as REASON_REJECTED
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.delivery_store import ACKED, DELIVERED, QUEUED, REFUSED, REJECTED, About, DeliveryStore
from celery_redis_plus.broker.publishing.tracking_request import TRACK
from celery_redis_plus.errors import CeleryRedisPlusError

if TYPE_CHECKING:
    from celery_redis_plus.broker.dead_letters.unroutable import UnroutableMessages

logger = logging.getLogger(__name__)

#: The header of a message whose delivery is tracked; it holds the delivery's id.
HEADER = "x-delivery-id"


class Tracking:
    """What one session publishes with tracking, and what it has delivered that somebody waits for."""

    def __init__(self, tracks: DeliveryStore, unroutable: UnroutableMessages) -> None:
        """Report to `tracks`; broadcasts that a subscriber rejects go to `unroutable`."""
        self.tracks = tracks
        self._unroutable = unroutable

    # -- publishers -------------------------------------------------------------------------------------------------------

    def begin(self, message: Mapping[str, Any], attempt: PublishAttempt, recipients: Sequence[str], payload: bytes) -> None:
        """Track a delivery, before any recipient can answer; a retry goes on with what was begun.

        The time for answers begins when the message becomes deliverable.

        Args:
            message: its header gets the delivery's id.
            attempt: collects the tags of the recipients' messages from now on.
            recipients: queues, or subscribers.
            payload: of a broadcast; what a subscriber that is too late leaves.

        Raises:
            InvalidEta: as `eta_of`.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        if attempt.tags is not None:
            return
        properties, wanted = message["properties"], message["properties"][TRACK]
        info = properties["delivery_info"]
        about = About(info["exchange"], info["routing_key"], bool(payload))
        self.tracks.begin(wanted.id, about, recipients, wanted.ack_timeout_s + _delay_s(message), payload)
        message["headers"][HEADER] = wanted.id
        attempt.tags = {}

    def queued(self, properties: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Note under which tags the queues have it; empty: it is a duplicate there. Raises as `CommandConnection.call` does."""
        for queue, tag in tags.items():
            self.tracks.report(properties[TRACK].id, queue, QUEUED if tag else REFUSED, tag, wait=True)

    def refused(self, properties: Mapping[str, Any], queue: str) -> None:
        """Note that a queue did not take the message. Raises as `CommandConnection.call` does."""
        self.tracks.report(properties[TRACK].id, queue, REFUSED, wait=True)

    # -- consumers --------------------------------------------------------------------------------------------------------

    def delivered(self, headers: Mapping[str, Any], recipient: str, payload: bytes | None = None) -> TrackedRecipient | None:
        """Report a delivery if it is tracked, before its consumer gets it; return what `settled` wants. Never raises."""
        track = headers.get(HEADER)
        if not isinstance(track, str):
            return None
        self._report(track, recipient, DELIVERED)
        return TrackedRecipient(track, recipient, payload)

    def settled(self, recipient: TrackedRecipient, settlement: Settlement) -> None:
        """Report a settlement. Never raises: a publisher who does not hear of it in time counts the recipient as too late."""
        if settlement not in (Settlement.ACK, Settlement.REJECT):
            return
        if settlement is Settlement.REJECT and recipient.payload is not None:
            try:
                self._unroutable.keep_for(recipient.name, recipient.payload, PublishAttempt(), REASON_REJECTED)
            except (RedisError, OSError, CeleryRedisPlusError) as error:
                # Unreported, the rejection becomes a dead letter when its time is over.
                logger.warning(
                    "broadcast %s was rejected by %r, and is no dead letter yet: %s", recipient.id, recipient.name, error,
                    extra={"queue": recipient.name},
                )  # fmt: skip
                return
        self._report(recipient.id, recipient.name, ACKED if settlement is Settlement.ACK else REJECTED)

    def _report(self, track: str, recipient: str, outcome: str) -> None:
        # UnicodeEncodeError: an id that no publisher of ours has made, and no key can have.
        with suppress(RedisError, OSError, UnicodeEncodeError):
            # The session's owner meets the lost connection with its next call.
            self.tracks.report(track, recipient, outcome)


def _delay_s(message: Mapping[str, Any]) -> float:
    """Return in how many seconds a message becomes deliverable; 0 for one that is now."""
    eta = eta_of(message["headers"], message["properties"])
    return int(eta) / 1000 if isinstance(eta, str) else max(0.0, eta / 1000 - time.time())
