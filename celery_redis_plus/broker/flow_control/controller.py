"""Publishes into queues and fanout exchanges with limits: typed, bounded, throttled. Checked are type, throttle, capacity.

The script decides everything that counts, in one step (`lua/publish_bounded.lua`, `lua/publish_fanout_bounded.lua`); this is what
a publisher does about it: sleep, wait for room, or raise. See docs/design/0009-flow-control.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.line_interval import LineInterval
from celery_redis_plus.errors import MessageNotAccepted, PublisherBlocksItself, PublishRefused, PublishTimedOut, QueueFull

if TYPE_CHECKING:
    from celery_redis_plus.broker.flow_control.publisher_queue import PublisherWaitQueue
    from celery_redis_plus.stored_message import Outgoing

logger = logging.getLogger(__name__)

#: Seconds after which a waiting publisher asks for its turn again, which also renews its place in the queue of publishers.
WAITER_CHECK_S = 1.0
#: Seconds of a wait after which it counts as long: those whom it waits for may be dead.
LONG_WAIT_S = 0.25
#: Seconds between two log lines about messages that a full queue of one name drops.
LOG_S = 10.0

#: Runs the publish script for one message; takes the arguments that it has besides those of every publish.
Send = Callable[..., Any]


class PublishTimeouts(NamedTuple):
    """How long a publisher waits at a queue's limits."""

    #: Seconds for which it waits for room, and for the throttle.
    timeout_s: float = 30.0
    #: Share of free room under which it slows down, where the queue leaves that to it.
    threshold: float = 0.5


class _Known(NamedTuple):
    """What a publisher knows of a queue's limits: as the record has them, and read."""

    text: bytes
    limits: Limits


class FlowController:
    """What one session knows of queues with limits, and how it waits for them."""

    def __init__(
        self,
        wait_queue: PublisherWaitQueue,
        timeouts: PublishTimeouts,
        *,
        check_type: Callable[[str, Limits, Outgoing, str], None],
        consumes_itself: Callable[[Collection[str]], bool],
        on_long_wait: Callable[[str, Collection[str]], object] = lambda *_: None,
        kind: str = "queue",
    ) -> None:
        """Publish with `timeouts`.

        Args:
            wait_queue: where to wait.
            timeouts: for how long.
            check_type: raises MessageNotAccepted where the limits of the queue, of this `kind`, do not accept the message.
            consumes_itself: tells whether the thread that asks would wait for itself, by these consumers or subscribers.
            on_long_wait: called each `WAITER_CHECK_S` of a long wait, with the queue, and those whom it waits for.
            kind: what has the limits, for errors: "queue" or "exchange". Its names stand for `queue` below.
        """
        self._kind = kind
        self._wait_queue = wait_queue
        self._timeouts = timeouts
        self._check_type = check_type
        self._consumes_itself = consumes_itself
        self._on_long_wait = on_long_wait
        self._threshold = b"%.4f" % timeouts.threshold
        self._throttle_us = int(timeouts.timeout_s * 1e6)
        self._known: dict[str, _Known] = {}
        #: Names of queues that have limits, as far as this publisher has heard.
        self.queues: Container[str] = self._known.keys()
        self._dropped = LineInterval(LOG_S)

    def put(self, queue: str, outgoing: Outgoing, send: Send) -> bytes | None:
        """Publish; return the script's answer as for a queue without limits, None where the queue has none any more.

        Raises:
            MessageNotAccepted: the queue does not accept messages of this type.
            QueueFull: the queue is at a limit, and refuses more; or stayed so for `publish_timeout`.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        state = _PublishState(self._wait_queue.new_name(), time.monotonic() + self._timeouts.timeout_s, self._throttle_us)
        refused = False
        try:
            while True:
                answer = self._send(queue, outgoing, send, state)
                if isinstance(answer, bytes):
                    return self._answered(queue, answer, state)
                kind = bytes(answer[0])
                if kind == b"DROPPED":
                    self._log_dropped(queue, int(answer[2]), kept=bool(answer[3]))
                    return bytes(answer[1])
                self._apply_answer(kind, answer, queue, state)
        except PublishRefused:
            refused = True
            raise
        finally:
            if state.ticket:
                self._wait_queue.leave(queue, state.name, refused=refused)

    def _answered(self, queue: str, answer: bytes, state: _PublishState) -> bytes | None:
        if answer not in {b"REDECLARED", b"REROUTE"}:
            state.ticket = b""
        if answer != b"UNBOUNDED":
            return answer
        self._known.pop(queue, None)
        return None

    def _send(self, queue: str, outgoing: Outgoing, send: Send, state: _PublishState) -> Any:
        known = self._known.get(queue)
        text, refusal = b"" if known is None else known.text, None
        if known is not None and known.limits.accepts:
            try:
                self._check_type(queue, known.limits, outgoing, self._kind)
            except MessageNotAccepted as error:
                # The queue may have been declared anew since: the server confirms, and counts.
                text, refusal = b"!" + text, error
        answer = send(text, b"%b %d %b %b" % (self._threshold, state.throttle_us, state.name.encode(), state.ticket))
        if refusal is not None and answer == b"REFUSED":
            raise refusal
        return answer

    def _apply_answer(self, kind: bytes, answer: Any, queue: str, state: _PublishState) -> None:
        """Wait or update what is known as the answer says, or raise; the caller tries again."""
        if kind == b"CHANGED":
            self._known[queue] = _Known(bytes(answer[1]), Limits.of(QueueArguments.decode(answer[2])))
        elif kind == b"THROTTLE":
            state.throttle_us = 0
            time.sleep(int(answer[1]) / 1e6)
        elif kind == b"WAIT":
            self._wait(queue, bytes(answer[1]), [bytes(name).decode() for name in answer[2:]], state)
        else:
            state.ticket = b""
            raise _full(f"{self._kind} {queue!r}", *answer[1:])

    def _wait(self, queue: str, ticket: bytes, consumers: list[str], state: _PublishState) -> None:
        state.ticket = ticket
        if consumers and self._consumes_itself(consumers):
            raise PublisherBlocksItself(
                f"{self._kind} {queue!r} is full, and only this thread, which now publishes into it, consumes it: waiting would "
                f"never end. Nothing is stored. Run a pool with more than one task at a time, or raise the {self._kind}'s limit"
            )
        left_s = state.deadline - time.monotonic()
        if left_s <= 0:
            raise PublishTimedOut(
                f"{self._kind} {queue!r} stayed full for {self._timeouts.timeout_s:g} s (option publish_timeout); "
                "nothing is stored"
            )
        if state.has_waited:
            self._on_long_wait(queue, consumers)
        self._wait_queue.wait(queue, state.name, min(left_s, WAITER_CHECK_S if state.has_waited else LONG_WAIT_S))
        state.has_waited = True

    def _log_dropped(self, queue: str, count: int, *, kept: bool) -> None:
        count = self._dropped.count(queue, count)
        if not count:
            return
        fate = "are gone: a transient queue without dead-letter exchange keeps none"
        if kept:
            fate = "are dead letters now"
        elif self._kind == "exchange":
            fate = "are lost to subscribers that had not processed them"
        logger.warning(
            "%s %r is full: %d message(s) at its head had to make room, and %s",
            self._kind,
            queue,
            count,
            fate,
            extra={self._kind: queue},
        )


@dataclass(slots=True)
class _PublishState:
    """One publish on its way."""

    #: Its name among the waiting publishers.
    name: str
    deadline: float
    #: Most that it may be slowed down, in microseconds; 0 when it was.
    throttle_us: int
    #: Its place among the waiting publishers, while it waits.
    ticket: bytes = b""
    has_waited: bool = False


def _full(owner: str, limit: bytes, size: int | bytes, has: int | bytes, dead: int) -> QueueFull:
    fate = "; it is among the dead letters (reason maxlen)" if dead else ""
    error = QueueFull(f"{owner} is full: {limit.decode()} is {int(size)}, it has {int(has)}; the message is not in it{fate}")
    error.is_dead_letter = bool(dead)
    return error
