"""How a publisher asks for the tracking of a message's deliveries."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from celery_redis_plus.errors import InvalidArgument

#: The property by which a publisher asks for tracking: a `TrackingRequest`. It never goes over the wire.
TRACK = "celery_redis_plus.track"
#: Seconds for which a recipient may take to answer, unless the publisher says.
ACK_TIMEOUT_S = 30.0


class TrackingRequest(NamedTuple):
    """A tracked delivery that a publisher asks for."""

    id: str
    ack_timeout_s: float


def is_tracked(track: object) -> bool:
    """Return the option `track`. Raises InvalidArgument where it is no bool."""
    if not isinstance(track, bool):
        raise InvalidArgument(f"track is {track!r:.100}; allowed are True and False")
    return track


def tracking_request(ack_timeout: Any) -> TrackingRequest:
    """Return a new delivery to be tracked: the property `TRACK` of a message.

    Raises:
        InvalidArgument: `ack_timeout` is no number of seconds over 0.
    """
    if isinstance(ack_timeout, bool) or not isinstance(ack_timeout, int | float) or not 0 < ack_timeout < 1e9:
        raise InvalidArgument(f"ack_timeout is {ack_timeout!r}; allowed is a number of seconds over 0")
    return TrackingRequest(uuid.uuid4().hex, ack_timeout)
