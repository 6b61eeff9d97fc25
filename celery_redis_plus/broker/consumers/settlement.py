"""How a delivery ends: the settlements of AMQP, and those by which a consumer gives back what it does not work on."""

from __future__ import annotations

from enum import Enum


class Settlement(Enum):
    """What a settlement does with a message."""

    ACK = "ack"
    #: Rejected without requeue: to the dead letters.
    REJECT = "reject"
    #: Sent back by a consumer that wants it to be delivered again: back in place.
    REQUEUE = "requeue"
    #: Sent back because the work on it failed: a failed delivery, back in place.
    FAIL = "fail"
    #: Put back by maintenance: its consumer has held it for longer than its queue allows.
    TIME_OUT = "time out"
    #: Given back by a consumer that had seen it, without a failure: close, cancel, shutdown.
    RELEASE_SEEN = "release seen"
    #: Given back out of a buffer, unseen.
    RELEASE_UNSEEN = "release unseen"

    #: Enum's own is a Python function, and each ack looks its settlement up.
    __hash__ = object.__hash__
