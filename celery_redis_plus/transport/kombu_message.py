"""kombu's message, as our channels deliver it."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.transport import base

from celery_redis_plus.broker.arguments.eta import moment_to_ms
from celery_redis_plus.broker.consumers.last_error import Failure
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.connection.unpatched import outcome_of
from celery_redis_plus.errors import InvalidEta
from celery_redis_plus.stored_message import BODY_SEPARATOR, UnreadableMessageError, checked_envelope, unreadable
from celery_redis_plus.transport.stored_json import TASK_DELIVERY, TASK_FENCE, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.broker.consumers.unacked import Unacked
    from celery_redis_plus.broker.fanout.entries import Entry
    from celery_redis_plus.stored_message import Claimed

#: The part of the interpreter's stack beneath which a message has to be readable: hardly any reader has used as much of it.
STACK_SHARE = 0.3


class Message(base.Message):
    """A delivered message; `body` is bytes, as it was published."""

    def __init__(
        self,
        payload: dict[str, Any],
        channel: Any = None,
        accept: Any = None,
        unacked: Unacked | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the message of a payload.

        Args:
            payload: kombu's wire format as a dict, the body in it unencoded.
            channel: the one that delivers it.
            accept: the content types that may be read.
            unacked: its record.
            kwargs: what kombu's message takes besides.
        """
        #: The channel that has delivered it. `channel` is that of the application, which may have put its own in place.
        self.delivered_by = channel
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
    #: `ack`, `nack` or `reject` where its task has settled it while it ran.
    settled_by_task = ""

    @property
    def waits_in_pool(self) -> bool:
        """Whether its task was given to the worker's pool and has not begun there."""
        return self.given_to_pool and not (self._unacked is not None and self._unacked.started)

    @property
    def given_back(self) -> bool:
        """Whether it was sent back to its queue, or is about to be."""
        return self._unacked is not None and self._unacked.given_back

    def begin(self, *, acked_early: bool = False) -> None:
        """Note that the work on it begins: the server is told where a delivery of it failed before. From any thread.

        Its task learns its fencing token, and which delivery it may settle: none, if it is acked before the work begins. What the
        publisher has sent under these names counts for nothing.
        """
        unacked = self._unacked
        # A broadcast has no claim number.
        delivery = f"{self.delivery_tag} {0 if unacked is None else unacked.claim}"
        self.properties[TASK_DELIVERY] = "" if acked_early else delivery
        self.properties[TASK_FENCE] = f"{delivery} {self.queue or ''}"
        if unacked is not None:
            unacked.started = True
            if unacked.failed_before:
                self.delivered_by.consumer_session.acknowledger.begin(unacked)

    def settle_for_task(self, how: str, *, delay_ms: int | None = None, error: str | None = None) -> bool:
        """Settle it for its task, which runs; return False where it is settled, or another consumer has it. From any thread.

        Args:
            how: `ack`, `nack` or `reject`.
            delay_ms: of `nack`: until it is delivered again; None leaves that to its queue.
            error: of `reject`: what its dead letter has as `error`.
        """
        unacked = self._unacked
        if self.acknowledged or (unacked is not None and unacked.is_settled):
            return False
        self.settled_by_task = how
        # An ack counts although the lease was lost: the work is done. Anything else is up to the consumer that has it now. This
        # delivery is over, also for the end of its task; its old claim number changes nothing on the server.
        if how != "ack" and unacked is not None and unacked.lease_lost:
            self.reject(requeue=True)
            return False
        if how == "ack":
            self.ack()
            # The task goes on, perhaps for long.
            self.delivered_by.consumer_session.acknowledger.flush()
            return True
        if unacked is not None:
            unacked.failed, unacked.retry_delay_ms = True, delay_ms
            release = self.delivered_by.session.options.release or ""
            unacked.note_outcome("", None if error is None else Failure(error, release=release))
        self.reject(requeue=how == "nack")
        return True

    def note_outcome(self, reason: str, failure: Failure | None = None) -> None:
        """Note how the work on it ended, for its settlement: a reason as `docs/events.md` has them, and the exception."""
        if self._unacked is not None:
            self._unacked.note_outcome(reason, failure)

    def tell_failed(self, reason: str, failure: Failure | None) -> None:
        """Tell the log that the work on it failed after it was acked early; nothing where its events are not written."""
        if self.delivered_by is not None and self._unacked is not None and self._unacked.is_logged:
            self.delivered_by.consumer_session.acknowledger.tell_failed(self._unacked.queue, self._unacked.tag, reason, failure)

    def mark_failed(self) -> None:
        """Note that its work failed: sent back with requeue, it counts towards the delivery limit."""
        if self._unacked is not None:
            self._unacked.failed = True

    def mark_acked_early(self, *, begins_here: bool = True) -> None:
        """Note that its ack does not wait for the work on it.

        With `begins_here` the work begins in this process after the ack, which leaves first: a crash repeats nothing.
        """
        if self._unacked is not None:
            self._unacked.acked_early, self._unacked.begins_here = True, begins_here


def broadcast_payload(entry: Entry, tag: str, redelivered: bool, *, again: bool = False) -> dict[str, Any]:
    """Return a broadcast as kombu's payload. Every call makes a new one: each consumer may change its own.

    `again`: it is read a second time.

    Raises:
        UnreadableMessageError: it cannot be read, the second time either.
    """
    try:
        envelope, _, body = entry[1][3].partition(BODY_SEPARATOR)
        payload = checked_envelope(load(envelope))
    except Exception as error:
        if again:
            raise
        raise _unreadable_again(error, partial(broadcast_payload, entry, tag, redelivered, again=True)) from error
    payload["body"] = body
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    properties["delivery_info"]["redelivered"] = redelivered
    return payload


def payload_of(claimed: Claimed, *, again: bool = False) -> dict[str, Any]:
    """Return a claimed message as kombu's payload, with what this delivery adds: tag and `redelivered`.

    `again`: it is read a second time.

    Raises:
        UnreadableMessageError: it cannot be read, the second time either.
    """
    try:
        payload = checked_envelope(load(claimed.envelope))
        payload["body"] = claimed.body or b""
        properties, headers = payload["properties"], payload["headers"]
        properties["delivery_tag"] = claimed.tag
        properties["delivery_info"]["redelivered"] = claimed.redelivered
        if claimed.expired:
            _expire(headers)
        if claimed.redelivered:
            headers["x-acquired-count"] = claimed.claim
            headers["x-delivery-count"] = claimed.failures
        elif "x-acquired-count" in headers:
            # Of the message whose headers this one was published with, as Celery's retries are.
            del headers["x-acquired-count"]
            headers.pop("x-delivery-count", None)
    except Exception as error:
        if again:
            raise
        raise _unreadable_again(error, partial(payload_of, claimed, again=True)) from error
    return payload


def _expire(headers: dict[str, Any]) -> None:
    """Have Celery's `Request.maybe_expire` find a task expired, as the server does: this machine's clock may be behind."""
    just_now = datetime.now(UTC) - timedelta(seconds=1)
    has_passed = False
    with suppress(InvalidEta):
        has_passed = moment_to_ms(headers.get("expires"), naive_is_utc=True) <= just_now.timestamp() * 1000
    if not has_passed:
        headers["expires"] = just_now.isoformat()


def _unreadable_again(error: Exception, read: Callable[[], object]) -> UnreadableMessageError:
    """Return the error that says that a message cannot be read, after a second reading: to be raised from `error`.

    The first one may have been interrupted, or begun with little stack left.

    Args:
        error: what the first reading has raised.
        read: reads the message; called in a thread of its own.

    Raises:
        Exception: `error`, where it tells nothing of the message, which stays where it is: the second reading raises nothing, or
            as in `unreadable`.
    """
    found = unreadable(error)
    outcome = outcome_of(lambda: _beneath(int(sys.getrecursionlimit() * STACK_SHARE), read))
    if isinstance(outcome, MemoryError) or not isinstance(outcome, BaseException):
        raise error
    return found


def _beneath(calls: int, read: Callable[[], object]) -> object:
    return _beneath(calls - 1, read) if calls else read()
