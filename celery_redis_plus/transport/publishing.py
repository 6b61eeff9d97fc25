"""Publishes what a channel is given: prepares the message, and routes it by the bindings of its exchange."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.broker.arguments.deduplication import deduplication_of, delay_of
from celery_redis_plus.broker.arguments.eta import COUNTDOWN, eta_of
from celery_redis_plus.broker.arguments.expiry import life_of
from celery_redis_plus.broker.arguments.names import check_group
from celery_redis_plus.broker.arguments.priority import RANKS, check_priority
from celery_redis_plus.broker.dead_letters.unroutable import NO_SUBSCRIBERS, UNDELIVERED, UNROUTABLE
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.tracking_request import TRACK
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import InvalidArgument, MessageNotAccepted, PublishRefused, Unroutable
from celery_redis_plus.event_log.metadata import SOURCE_ID, describe
from celery_redis_plus.stored_message import BODY_SEPARATOR, LARGE_BODY, Outgoing
from celery_redis_plus.transport.arguments import PASSED_ON, check_properties
from celery_redis_plus.transport.stored_json import TASK_DELIVERY, TASK_FENCE, dump, is_protocol_1

if TYPE_CHECKING:
    from celery_redis_plus.broker.exchanges.known_queues import KnownQueue
    from celery_redis_plus.consumer.publisher_session import PublisherSession

logger = logging.getLogger(__name__)

#: Where a message's attempt waits in its properties between two tries: kombu's `Producer.publish(retry=True)` hands the
#: same dict to each (kombu 5.7, `messaging.py`). It never goes over the wire.
ATTEMPT = "celery_redis_plus.attempt"
#: Properties that belong to one delivery or to this process.
LOCAL_PROPERTIES = frozenset(
    {ATTEMPT, TRACK, TASK_DELIVERY, TASK_FENCE, SOURCE_ID, COUNTDOWN, "delivery_tag", "body_encoding", "eta"}
)


#: So often a message is routed anew because the bindings have changed while they were read; then those that were read last count.
MAX_REROUTES = 5

#: Task id -> id of the task that stands for it already, of deduplicated publishes; for a caller who asks for it by a dict.
duplicate_tasks: ContextVar[dict[str, str] | None] = ContextVar("standing_tasks", default=None)


def tell_duplicate(message: Mapping[str, Any], attempt: PublishAttempt) -> str | None:
    """Return the message that stands for one that was published, as `Channel.basic_publish`; tell its task to who has asked."""
    if attempt.duplicate_task is not None and (asked := duplicate_tasks.get()) is not None:
        asked[message["headers"].get("id")] = attempt.duplicate_task
    return attempt.duplicate_of


class ExchangePublisher:
    """Publishes messages to exchanges: to the queues that are bound to them, or to a fanout exchange's stream."""

    def __init__(self, session: PublisherSession) -> None:
        self._session = session

    def publish(self, message: dict[str, Any], exchange: str, routing_key: str, *, mandatory: bool) -> str | None:
        """Publish a message, and return when the server has confirmed it. Returns and raises as `Channel.basic_publish`."""
        properties = message["properties"]
        if not PASSED_ON.issuperset(properties):
            check_properties(properties, message["headers"], LOCAL_PROPERTIES)
        # Taken out at once: when the outcome is known, the same dict may carry another message.
        attempt: PublishAttempt = properties.pop(ATTEMPT, None) or PublishAttempt()
        properties["delivery_info"] = {**properties.get("delivery_info", {}), "exchange": exchange, "routing_key": routing_key}
        try:
            self.send(message, exchange, routing_key, attempt, mandatory=mandatory)
        except PublishRefused:
            # The outcome is known, too.
            if not exchange and TRACK in properties:
                self._session.tracking.refused(properties, routing_key)
            raise
        except BaseException:
            properties[ATTEMPT] = attempt
            raise
        if attempt.tags is not None:
            self._session.tracking.queued(properties, attempt.tags)
        return None if attempt.duplicate_of is None else tell_duplicate(message, attempt)

    def prepare_for_batch(self, message: dict[str, Any], queue: str) -> Outgoing | None:
        """Return a message to a queue as a batch publishes it; None where it has to be published by itself.

        Raises as `publish` does.
        """
        properties, publisher = message["properties"], self._session.publisher
        if ATTEMPT in properties or TRACK in properties or publisher.waits_for_replicas or publisher.is_bounded(queue):
            return None
        if not PASSED_ON.issuperset(properties):
            check_properties(properties, message["headers"], LOCAL_PROPERTIES)
        properties["delivery_info"] = {**properties.get("delivery_info", {}), "exchange": "", "routing_key": queue}
        # The caller may change these dicts before the batch is published.
        return self._outgoing({**message, "headers": dict(message["headers"]), "properties": dict(properties)}, queue)

    def publish_prepared(
        self, message: dict[str, Any], prepared: Outgoing, queue: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> None:  # fmt: skip
        """Publish a message of a batch by itself, as it was `prepared`, under the attempt of the batch. Raises as `publish`."""
        on_missing = _raise_unroutable if mandatory else None
        if not self._session.publisher.to_queue(queue, prepared, attempt, on_missing):
            self.keep_unrouted(message, "", queue, attempt, mandatory=mandatory, broadcast=False)

    def send(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> None:  # fmt: skip
        """Route a message, and return when its queues and replicas have it."""
        if TRACK in message["properties"]:
            self._track(message, exchange, routing_key, attempt)
        publisher = self._session.publisher
        if exchange:
            routed = self.take(message, exchange, routing_key, attempt, mandatory=mandatory)
        else:
            # Else kombu's habit: a queue that nobody has declared is made.
            on_missing = _raise_unroutable if mandatory else None
            routed = bool(publisher.to_queue(routing_key, self._outgoing(message, routing_key), attempt, on_missing))
        if not routed and not self._take_alternately(message, exchange, routing_key, attempt):
            broadcast = bool(exchange) and self._session.bindings.is_fanout(exchange)
            self.keep_unrouted(message, exchange, routing_key, attempt, mandatory=mandatory, broadcast=broadcast)
        # An error would end a worker: remote control, events and their replies may be lost.
        if publisher.waits_for_replicas and not (exchange and self._session.ignores_unroutable(exchange)):
            publisher.check_replicas(attempt)

    def to_fallback(self, message: dict[str, Any], queue: str, attempt: PublishAttempt) -> None:
        """Give a message without a recipient to the queue that the option `deadletter_queue` names."""
        self._session.publisher.to_queue(queue, self._outgoing(message, queue), attempt)

    def _has_alternate(self, exchange: str) -> bool:
        """Return whether the exchange has an alternate exchange, for messages that it cannot route."""
        record = self._session.bindings.known(exchange)
        return record is not None and record.alternate_exchange is not None

    def _track(self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt) -> None:
        """Begin to track the deliveries of a message."""
        broadcast = bool(exchange) and self._session.bindings.is_fanout(exchange)
        recipients = self._recipients(exchange, routing_key, message["headers"], broadcast=broadcast)
        payload = self._stream_payload(message) if broadcast else b""
        self._session.tracking.begin(message, attempt, recipients, payload)

    def _recipients(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any], *, broadcast: bool
    ) -> Sequence[str]:  # fmt: skip
        """Return who gets a message: queues, or subscribers of a fanout exchange by their ids in the register."""
        session = self._session
        if broadcast:
            subscribers = session.registry.subscribers(session.fanout_keys(exchange))
            return [subscriber.id for subscriber in subscribers if subscriber.state != "left"]
        return session.bindings.refresh(exchange).route(routing_key, headers) if exchange else [routing_key]

    def take(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> bool:  # fmt: skip
        """Give a message to an exchange that has a name; return False where it has no recipient, and it is not kept."""
        bindings = self._session.bindings
        while True:
            if bindings.is_fanout(exchange):
                must_reach = mandatory or self._has_alternate(exchange)
                taken = self._broadcast(message, exchange, routing_key, attempt, mandatory=must_reach)
            else:
                taken = self._route(message, exchange, routing_key, attempt)
            if taken is not None:
                return taken
            # It was declared again, or its bindings have changed, since they were read: nothing is stored by the old ones.
            bindings.refresh(exchange)

    def _broadcast(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool
    ) -> bool | None:  # fmt: skip
        """Give a message to a fanout exchange, as `_take`; return None where it is another exchange by now."""
        session = self._session
        if session.acceptance.queues:
            session.acceptance.check(exchange, message, "exchange")
        outgoing = Outgoing(self._envelope(message), _body(message["body"]), rank=0, message=message)
        target = session.target(exchange)
        try:
            record = session.bindings.text_of(exchange)
            return session.publisher.to_stream(target, record, outgoing, routing_key or "", attempt, mandatory=mandatory)
        except PublishRefused:
            if TRACK in message["properties"]:
                for subscriber in session.registry.subscribers(target.keys):
                    session.tracking.refused(message["properties"], subscriber.id)
            raise

    def _take_alternately(self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt) -> bool:
        """Give a message to the alternate exchanges, one after the other, until one has somebody for it."""
        others = self._session.bindings.alternates(exchange) if exchange else ()
        return any(self.take(message, other, routing_key, attempt, mandatory=True) for other in others)

    def _route(self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt) -> bool | None:
        """Give a message to the queues that are bound to an exchange; return False where none takes it.

        None: the exchange or its bindings have changed. Queues that have the message by then do not get it again.
        """
        bindings, publisher = self._session.bindings, self._session.publisher
        headers = message["headers"]

        def still_bound(queue: str) -> bool:
            """Make a queue that has no record, unless it was deleted: then its binding, which we remember, is gone with it."""
            return queue in bindings.refresh(exchange).route(routing_key, headers) and self._session.queues.revive(queue)

        queues = bindings.route(exchange, routing_key, headers)
        if bindings.is_fanout(exchange):
            return None
        # Who reads many bindings while many are added would never be done.
        routed_by = bindings.routed_by(exchange) if attempt.reroutes < MAX_REROUTES else None
        routed = False
        refused: Exception | None = None
        for queue in queues:
            try:
                outgoing = self._outgoing(message, queue)
                outgoing.routed_by = routed_by
                taken = publisher.to_queue(queue, outgoing, attempt, still_bound)
                if taken is None:
                    attempt.reroutes += 1
                    return None
                routed = taken or routed
            except (PublishRefused, ResponseError, InvalidArgument) as error:
                if not isinstance(error, PublishRefused) and not concerns_keys(error):
                    raise
                # As in AMQP: each queue decides for itself, and the publisher hears of a refusal.
                refused = error
                if TRACK in message["properties"]:
                    self._session.tracking.refused(message["properties"], queue)
        if routed:
            bindings.confirm(exchange)
        if refused is not None and not (routed and TRACK in message["properties"]):
            raise refused
        return routed

    def keep_unrouted(
        self, message: dict[str, Any], exchange: str, routing_key: str, attempt: PublishAttempt, *, mandatory: bool,
        broadcast: bool,
    ) -> None:  # fmt: skip
        """Log, count and keep a message without a recipient; `broadcast` tells whether its exchange is a fanout exchange."""
        session = self._session
        reason = NO_SUBSCRIBERS if broadcast else UNROUTABLE
        text = f"exchange {exchange!r} has no subscriber" if broadcast else _nowhere(exchange, routing_key)
        if mandatory:
            raise Unroutable(f"{text}; it was not stored (mandatory)")
        about = {"exchange": exchange, "routing_key": routing_key, "task_id": message["headers"].get("id")}
        fallback = None if broadcast or not exchange else session.options.deadletter_queue
        if fallback:
            self.warn_of_fallback(message, exchange, routing_key)
            self.to_fallback(message, fallback, attempt)
        elif not exchange:
            # Its queue was transient and is gone, a client that has left: such queues keep no dead letters.
            session.unroutable.count()
            self._warn(f"{text}: it is dropped and counted (mandatory=True makes it an error)", exchange, about)
        elif session.ignores_unroutable(exchange):
            session.unroutable.count()
            logger.debug("%s: it is counted (option ignore_unroutable_exchanges)", text)
        else:
            session.queues.ensure_swept_once(UNDELIVERED)
            session.unroutable.keep(self._outgoing(message, UNDELIVERED), attempt, reason)
            self._warn(f"{text}: it is a dead letter of {UNDELIVERED!r} now (reason {reason})", exchange, about)
        if broadcast:
            # It may be in its stream already, for those who come back; a retry shall not ask again.
            attempt.confirm(exchange)

    def warn_of_fallback(self, message: Mapping[str, Any], exchange: str, routing_key: str) -> None:
        """Log that a message without a recipient goes to the queue of the option `deadletter_queue`."""
        about = {"exchange": exchange, "routing_key": routing_key, "task_id": message["headers"].get("id")}
        text = f"{_nowhere(exchange, routing_key)}: it goes to {self._session.options.deadletter_queue!r}"
        self._warn(text, exchange, about)

    def _warn(self, text: str, exchange: str, about: Mapping[str, Any]) -> None:
        """Log a message without a recipient: the first one of an exchange at once, then one line a minute with their number."""
        count = self._session.shared.unrouted.count(exchange)
        if count:
            logger.warning("%s%s", text, f" (so many since the last line: {count})" if count > 1 else "", extra=about)

    def _outgoing(self, message: dict[str, Any], queue: str) -> Outgoing:
        headers, properties = message["headers"], message["properties"]
        if self._session.acceptance.queues:
            self._check_accepted(message, queue)
        queues, body = self._session.queues, _body(message["body"])
        known = queues.cached(queue) or queues.read(queue)
        priority = properties.get("priority")
        if priority != 0 or type(priority) is not int or known is None or not known.ordinary:
            # All but what most messages have, in queues without rules for it.
            priority = _checked_priority(headers, properties, known)
        has_time = headers.get("eta") is not None or "x-delay" in headers or "eta" in properties or COUNTDOWN in properties
        eta = eta_of(headers, properties) if has_time else 0
        life = ""
        if "expiration" in properties or headers.get("expires") is not None:
            life = life_of(headers, properties.get("expiration"))
        deduplication = None
        if "x-deduplication-id" in headers:
            deduplication = deduplication_of(headers, self._session.keys.queue(queue))
            eta = eta or delay_of(headers) or 0
        limited = "x-limiter" in headers or "x-limiter" in properties
        if limited:
            from celery_redis_plus.broker.arguments.limiters import check_limiter

            check_limiter(headers, properties)
        if life and is_protocol_1(headers, body):
            life = ""
        if life or limited:
            queues.ensure_swept_once(queue)
        outgoing = Outgoing(
            envelope=self._envelope(message, priority),
            body=body,
            rank=RANKS[self._session.options.priority_order or "high-first"][priority],
            eta=eta,
            life=life,
            message=message,
            deduplication=deduplication,
            limited=limited,
            describe=partial(describe, headers, properties, eta_ms=eta, body_size=len(body)),
        )
        if known is not None:
            outgoing.ordinary = known.ordinary and not (eta or life or deduplication or limited) and len(body) <= LARGE_BODY
            if priority or life or outgoing.ordinary:
                outgoing.queue_id = known.id
                outgoing.prepare_again = partial(self._prepare_again, message, queue)
        return outgoing

    def _check_accepted(self, message: dict[str, Any], queue: str) -> None:
        """Raise MessageNotAccepted where a typed queue does not take a message, and count it."""
        try:
            self._session.acceptance.check(queue, message)
        except MessageNotAccepted:
            self._session.publisher.count(queue, "rejected", existing=True)
            raise

    def _prepare_again(self, message: dict[str, Any], queue: str) -> Outgoing:
        """Prepare a message by the queue's record as it is now."""
        self._session.queues.read(queue)
        return self._outgoing(message, queue)

    def _stream_payload(self, message: dict[str, Any]) -> bytes:
        return self._envelope(message) + BODY_SEPARATOR + _body(message["body"])

    def _envelope(self, message: dict[str, Any], priority: int | None = None) -> bytes:
        """Return headers and properties as they are stored; `priority` is that of the queue, where it caps."""
        properties = message["properties"]
        if priority is not None and priority != properties.get("priority"):
            properties = {**properties, "priority": priority}
        return dump(
            {
                "content-type": message["content-type"],
                "content-encoding": message["content-encoding"],
                "headers": message["headers"],
                "properties": properties
                if LOCAL_PROPERTIES.isdisjoint(properties)
                else {name: value for name, value in properties.items() if name not in LOCAL_PROPERTIES},
            }
        )


def _nowhere(exchange: str, routing_key: str) -> str:
    return f"no queue takes a message to exchange {exchange!r} with routing key {routing_key!r}"


def _raise_unroutable(queue: str) -> bool:
    """Refuse a mandatory message to the default exchange, for a queue that has no record."""
    raise Unroutable(f"{_nowhere('', queue)}: there is no such queue; it was not stored (mandatory)")


def _checked_priority(headers: Mapping[str, Any], properties: dict[str, Any], known: KnownQueue | None) -> int:
    """Return the priority with which a queue takes a message, which keeps its own; check the group that it may need."""
    properties["priority"] = priority = check_priority(properties.get("priority"))
    if known is None:
        return priority
    if known.arguments.groups is not None:
        check_group(headers, properties)
    return check_priority(priority, known.arguments.max_priority)


def _body(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if body is None:
        return b""
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise InvalidArgument(
        f"argument 'body' is of type {type(body).__name__!r}; allowed are bytes and str: a Producer serializes others"
    )
