"""The functions that users call: `publish`, `broadcast`, `delivery` and `counters`, and the handle of a tracked delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer
from kombu.transport import base

from celery_redis_plus.broker.publishing.tracking_request import ACK_TIMEOUT_S, TRACK, is_tracked, tracking_request
from celery_redis_plus.connection.forks import lock_of, on_fork_in_child
from celery_redis_plus.errors import DeliveryNotFound, InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.broker.publishing.delivery_store import Tracked
    from celery_redis_plus.broker.queues.counters import Counters
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.transport.channel import Channel

Callback = Callable[["Delivery"], object]


class Delivery:
    """A message, or a broadcast, on its way to all its recipients.

    Recipients are the queues that the message was routed to, by name, or the subscribers that a fanout exchange had, by their
    ids (the part behind the first dot is the queue). Each is `pending` or `delivered`, and ends in one of these:

    - `acked` or `rejected`
    - `timed_out`: no answer within `ack_timeout`; it counts as nacked, and its message is a dead letter
    - `refused`: its queue was full, or accepts other types
    - `expired`, or `moved` to another queue
    - `gone`: purged, deleted, or dropped by a limit

    The state is on the server, for an hour after the timeout, so that any process can ask by `id`.
    """

    def __init__(self, track: str, session: PublisherSession, state: Tracked) -> None:
        """Follow the delivery `track`, which `state` is known of."""
        #: What another process finds it by: `celery_redis_plus.delivery(id, connection=…)`.
        self.id = track
        self._session = session
        self._state = state
        self._lock = lock_of(self)
        self._over = threading.Event()
        self._watching = False
        self._complete: list[Callback] = []
        self._resolved: list[Callback] = []
        on_fork_in_child(self)

    def forked(self) -> None:
        """Start waiting again in a child, which has no thread of its parent; the callbacks are the parent's."""
        over, self._over = self._over.is_set(), threading.Event()
        if over:
            self._over.set()
        self._watching = False
        self._complete, self._resolved = [], []

    def outcomes(self) -> Mapping[str, str]:
        """Return what is known of each recipient now.

        Raises:
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        if not self._over.is_set():
            state = self._session.tracking.tracks.state(self.id)
            if state is not None:
                self._state = state
        return dict(self._state.outcomes)

    @property
    def resolved(self) -> bool:
        """Whether every recipient has answered, or was too late."""
        self.outcomes()
        return self._state.resolved_ms is not None

    @property
    def complete(self) -> bool:
        """Whether every recipient has acked; False without recipients."""
        return self.resolved and self._state.complete

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every recipient has answered or was too late, at most `timeout` seconds; return whether they did."""
        self._watch()
        return self._over.wait(timeout)

    def on_complete(self, callback: Callback) -> None:
        """Call `callback(delivery)` once, from another thread, when all have acked; at once if they have."""
        self._on(self._complete, callback)

    def on_resolved(self, callback: Callback) -> None:
        """Call `callback(delivery)` once, from another thread, when all have answered or were too late.

        It comes after `on_complete`, too: clean up here.
        """
        self._on(self._resolved, callback)

    def _on(self, callbacks: list[Callback], callback: Callback) -> None:
        with self._lock:
            over = self._over.is_set()
            if not over:
                callbacks.append(callback)
        if not over:
            self._watch()
        elif callbacks is self._resolved or self._state.complete:
            callback(self)

    def _watch(self) -> None:
        with self._lock:
            if self._watching or self._over.is_set():
                return
            self._watching = True
        self._session.service.deliveries.watch(self.id, self._end)

    def _end(self, state: Tracked | None) -> None:
        with self._lock:
            if state is not None:
                self._state = state
            self._over.set()
            callbacks = [*(self._complete if self._state.complete else ()), *self._resolved]
        for callback in callbacks:
            callback(self)

    def __repr__(self) -> str:
        """Show the id and what was known last."""
        return f"<Delivery {self.id}: {dict(self._state.outcomes)}>"


def publish(
    body: Any, *, connection: Any, exchange: str = "", routing_key: str = "", track: bool = False,
    ack_timeout: float = ACK_TIMEOUT_S, **properties: Any,
) -> Delivery | None:  # fmt: skip
    """Publish a message; with `track`, return a handle that tells what becomes of it in every queue that it is routed to.

    Args:
        body: what kombu's serializer takes.
        connection: a kombu Connection or channel over our transport, or a Celery app.
        exchange: the default exchange is '', where `routing_key` names the queue.
        routing_key: by which the exchange routes.
        track: whether to wait for answers.
        ack_timeout: seconds within which each recipient has to ack or reject.
        properties: further arguments of `kombu.Producer.publish`: headers, priority, serializer, retry, …

    Raises:
        InvalidArgument: `track` is no bool; `ack_timeout` is no number of seconds over 0.
        PublishRefused: no queue takes it; of a tracked one that some do take, the others' outcome is `refused`.
        kombu.exceptions.ChannelError: as `Channel.basic_publish`.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with channel_of(connection) as channel:
        if not is_tracked(track):
            Producer(channel).publish(body, exchange=exchange, routing_key=routing_key, **properties)
            return None
        return _tracked(channel, body, exchange, routing_key, ack_timeout, properties)


def broadcast(
    body: Any, exchange: str, *, connection: Any, routing_key: str = "", ack_timeout: float = ACK_TIMEOUT_S, **properties: Any
) -> Delivery:  # fmt: skip
    """Broadcast over a fanout exchange; return a handle that tells what becomes of it with every subscriber of this moment.

    A subscriber acks or rejects as it would any message. One that rejects, or does not answer within `ack_timeout` seconds,
    leaves a dead letter, with its id in the header `x-recipient`, in the queue `celery_redis_plus.undelivered`. Without
    subscribers the broadcast itself becomes one, and the handle is resolved and not complete.

    Raises:
        InvalidArgument: the exchange is no fanout exchange.
        kombu.exceptions.ChannelError: as `Channel.basic_publish`.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with channel_of(connection) as whole:
        channel = whole.of_broadcasts(exchange)
        record = channel.session.bindings.record(exchange)
        if record is None or record.type != "fanout":
            kind = "does not exist" if record is None else f"is of type {record.type!r}"
            raise InvalidArgument(f"exchange {exchange!r} {kind}; allowed is a fanout exchange that was declared")
        return _tracked(channel, body, exchange, routing_key, ack_timeout, properties)


def delivery(track: str, *, connection: Any) -> Delivery:
    """Return the handle of a tracked delivery by its id, in whichever process it was published.

    Raises:
        DeliveryNotFound: nothing is known of it, or not any more.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with channel_of(connection) as channel:
        return _handle(channel, track)


def counters(queue: str, *, connection: Any) -> Counters:
    """Return what has happened in `queue` since it was declared, and what is in it, in one round trip.

    Args:
        queue: its name.
        connection: a kombu Connection or channel over our transport, or a Celery app.

    Raises:
        ChannelError: there is no such queue (404).
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with channel_of(connection) as channel:
        return channel.queue_counters(queue)


def _tracked(
    channel: Channel, body: Any, exchange: str, routing_key: str, ack_timeout: float, properties: Mapping[str, Any]
) -> Delivery:  # fmt: skip
    wanted = tracking_request(ack_timeout)
    Producer(channel).publish(body, exchange=exchange, routing_key=routing_key, **{**properties, TRACK: wanted})
    return _handle(channel, wanted.id)


def _handle(channel: Channel, track: str) -> Delivery:
    found = []
    for broker in channel.all_brokers():
        state = broker.session.tracking.tracks.state(track)
        if state is not None:
            found.append(Delivery(track, broker.session, state))
    if not found:
        raise DeliveryNotFound(f"no tracked delivery {track!r} is known: none was published under this id, or long ago")
    return channel.composed(found)


@contextmanager
def channel_of(source: Any) -> Iterator[Channel]:
    """Give a channel of ours, which a connection, a channel or a Celery app leads to.

    Raises:
        InvalidArgument: it is none of these, or leads to another transport.
    """
    if isinstance(source, base.StdChannel):
        yield _ours(source)
    elif isinstance(source, Connection):
        yield _ours(source.default_channel)
    elif hasattr(source, "producer_or_acquire"):
        with source.producer_or_acquire() as producer:
            yield _ours(producer.channel)
    else:
        raise InvalidArgument(f"connection is {source!r}; allowed are a kombu Connection, a channel, or a Celery app")


def _ours(channel: Any) -> Channel:
    if not hasattr(channel, "of_broadcasts"):
        raise InvalidArgument(f"connection leads to {channel!r}; allowed is one over the transport of celery_redis_plus")
    ours: Channel = channel
    return ours
