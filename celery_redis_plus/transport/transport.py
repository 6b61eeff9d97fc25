"""kombu's transport on our broker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from kombu.transport import base, virtual

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.lanes import lane_of, lane_prefixes
from celery_redis_plus.consumer.publisher_session import PublisherSession
from celery_redis_plus.kombu_options import check_url_options, ignored
from celery_redis_plus.options import Options
from celery_redis_plus.transport import framework_hooks, url_parsing, url_sentinels
from celery_redis_plus.transport.amqp_errors import CHANNEL_ERRORS, CONNECTION_ERRORS
from celery_redis_plus.transport.channel import Channel as BrokerChannel
from celery_redis_plus.transport.typed_queues import Accepted, TypeCheck

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.consumer.consumer_session import ConsumerSession
    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop

logger = logging.getLogger(__name__)

DEFAULT_PORT = 6379
#: Seconds for which a close waits for settlements that have to go out over another connection.
CLOSE_FLUSH_S = 2.0
#: Options without a meaning here that this process has named in its log: once is enough, and every connection has them.
_reported: set[str] = set()

# kombu asks for the transport's class just before it takes the URL apart.
url_parsing.install()


class Transport(virtual.Transport):
    """One kombu connection to Redis or Valkey."""

    Channel = BrokerChannel

    default_port = DEFAULT_PORT
    #: Celery decides by it on mingle, gossip, `worker_disable_prefetch` and the exchange of events.
    driver_type = "redis"
    driver_name = "redis"
    #: The broker keeps delayed messages; Celery's own DelayedDelivery bootstep is for RabbitMQ's quorum queues.
    supports_native_delayed_delivery = True
    connection_errors = CONNECTION_ERRORS
    channel_errors = CHANNEL_ERRORS
    recoverable_connection_errors = CONNECTION_ERRORS
    #: None: kombu repeats at once, without a pause and by default for ever, what failed with one of them (`Connection.ensure`,
    #: 5.6 and 5.7). The server has answered, and says the same again: a worker that started while the server's memory was full
    #: asked it 12,000 times a second whether its first event is welcome now.
    recoverable_channel_errors = ()

    implements = base.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout", "headers"]),
        heartbeats=False,
    )

    #: One for each lane. `session` is that of the first, for what is the same in all.
    sessions: list[PublisherSession]
    session: PublisherSession
    #: What serves the consumers; None before there are any.
    _delivery_loop: DeliveryLoop | None = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Prepare a connection as `client`, a kombu Connection, describes it."""
        super().__init__(client, **kwargs)
        url_sentinels.mend(client)
        self._connected = False
        self._lock = lock_of(self)
        # Of the instance only: kombu asks it before it prints the address (`as_uri`), and the class before it parses a URL.
        self.can_parse_url = True
        framework_hooks.install()

    def driver_version(self) -> str:
        """Return redis-py's version."""
        return str(redis.__version__)

    def setup_native_delayed_delivery(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the scripts hold delayed messages without any set-up."""

    # -- life -------------------------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect.

        Raises:
            OptionError: a transport option is unknown, of the wrong type or out of range.
            redis.exceptions.ConnectionError: and its kin, as `errors` names them.
        """
        sessions = self._open_sessions(self._options())
        if self._connected and self._delivery_loop is not None:
            # kombu replaces a broken connection without closing it; nothing of it may stay in an event loop.
            self._delivery_loop.detach()
        self.sessions, self.session = sessions, sessions[0]
        self._delivery_loop = None
        self._connected = True
        return self

    @property
    def delivery_loop(self) -> DeliveryLoop:
        """What serves the consumers of all channels: made when there is the first, and what it needs is loaded then."""
        if self._delivery_loop is None:
            # Threads may begin to consume at the same moment.
            with self._lock:
                if self._delivery_loop is None:
                    with forks.loading:
                        from celery_redis_plus.consumer.consumer_session import ConsumerSession
                        from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
                        from celery_redis_plus.transport.compat import HUB_READY

                    self._delivery_loop = DeliveryLoop([ConsumerSession(session) for session in self.sessions], HUB_READY.of)
        return self._delivery_loop

    def _open_sessions(self, options: Options) -> list[PublisherSession]:
        """Connect to each lane. Raises as `establish_connection` does."""
        address = self._address()
        sessions: list[PublisherSession] = []
        try:
            prefixes = lane_prefixes(options.global_keyprefix, options.cluster_lanes)
            for prefix in prefixes:
                session = PublisherSession(
                    address,
                    options if options.cluster_lanes == 1 else replace(options, global_keyprefix=prefix),
                    self.client,
                    acceptance=TypeCheck(options.accept),
                    ignores_unroutable=partial(framework_hooks.ignores_unroutable, options.ignore_unroutable_exchanges),
                    lanes=prefixes if len(prefixes) > 1 else (),
                )
                sessions.append(session)
        except BaseException:
            for session in sessions:
                session.close()
            raise
        services = [session.service for session in sessions] if len(sessions) > 1 else []
        for service in services:
            service.others = [other for other in services if other is not service]
        return sessions

    def session_of(self, queue: str) -> PublisherSession:
        """Return the connection to the lane of a queue."""
        return self.sessions[lane_of(queue, len(self.sessions))]

    def _address(self) -> Address:
        client = self.client
        hidden = url_sentinels.names_several_hosts(client.password)
        return Address.from_parts(
            hostname=client.password if hidden else client.hostname,
            port=client.port,
            virtual_host=client.virtual_host,
            username=client.userid,
            password=None if hidden else client.password,
            ssl=client.ssl,
            # kombu knows only of its own `rediss` that it means TLS.
            scheme=client.transport_cls,
            credential_provider=getattr(client, "credential_provider", None),
        )

    def _options(self) -> Options:
        client = self.client
        # A hostname that is a URL is that of a Unix socket, which kombu leaves as it is.
        in_url = url_options(client.hostname if "://" in (client.hostname or "") else client.virtual_host or "")
        check_url_options(in_url)
        given = {**(client.transport_options or {}), **in_url}
        if isinstance(given.get("accept"), Mapping) and not isinstance(given["accept"], Accepted):
            given["accept"] = Accepted(given["accept"])
            client.transport_options = {**client.transport_options, "accept": given["accept"]}
        if isinstance(given.get("sentinel_kwargs"), url_sentinels.HiddenKwargs):
            given["sentinel_kwargs"] = given["sentinel_kwargs"].real
        meaningless = frozenset(ignored(given))
        if meaningless - _reported:
            _reported.update(meaningless)
            logger.info("transport options that have no effect here are ignored: %s", ", ".join(sorted(meaningless)))
        return Options.from_mapping(given)

    def create_channel(self, connection: Any) -> BrokerChannel:
        """Open a channel on `connection`, which is another transport than this one where kombu has just failed over.

        `Connection.channel` (kombu 5.6, 5.7) looks up its transport first and connects then, and connecting may replace the
        transport by that of the next URL.
        """
        transport = connection if isinstance(connection, Transport) else self
        channel: BrokerChannel
        if len(transport.sessions) == 1:
            channel = transport.Channel(transport)
        else:
            from celery_redis_plus.transport.lane_channel import LaneChannel

            channel = LaneChannel(transport)
        transport.channels.append(channel)
        return channel

    def read_broadcasts_again(self, queue: str) -> None:
        """Let all channels that consume a queue read what it is bound to now."""
        for channel in self.channels:
            if channel.has_consumers:
                channel.fanout_consumer.read(queue)

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the connection; what waits to be settled goes out first."""
        if not self._connected:
            return
        self._connected = False
        if self._delivery_loop is not None:
            self._delivery_loop.detach()
            for server in self._delivery_loop.servers:
                _end_wait(server.connection)
        while self.channels:
            self.channels[-1].close()
        for session in self.sessions:
            if session.broken:
                session.abandon()
            session.close()
        for session in self.sessions:
            self._flush(session)

    def _flush(self, session: PublisherSession) -> None:
        """Wait until what is settled is confirmed, where the process may end now."""
        service = session.shared.service
        if service is None or not service.unacked_messages.waiting:
            return
        if _may_be_the_end(service.active_tasks) and not service.flush(CLOSE_FLUSH_S):
            logger.warning(
                "the broker is unreachable: %d message(s) are not settled; this process keeps trying, then they come "
                "back after the visibility timeout",
                len(service.unacked_messages),
            )  # fmt: skip

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is usable.

        A broken one counts as usable while it has consumers, or an event loop that waits for some: in place of another one
        kombu quietly opens a new connection (`Connection.connection`, 5.6 and 5.7), on which they would wait for ever. Their
        next `drain_events`, or the loop's next turn, raises instead.
        """
        if not self._connected:
            return False
        if all(not session.broken and session.commands.connected for session in self.sessions):
            return True
        if self._delivery_loop is None:
            return False
        lanes = [lane for channel in self.channels for lane in channel.lanes]
        return self._delivery_loop.attached or any(lane.has_consumers and lane.queue_consumers.consumed for lane in lanes)

    # -- events -----------------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message, or up to 32 broadcasts that have come together, for 10 ms at the most.

        Raises:
            TimeoutError: none came within `timeout` seconds (`socket.timeout` is the same class).
            ConsumerCancelled: a consumer's queue was deleted; the others go on with the next call.
            redis.exceptions.RedisError: the connection is broken; kombu reconnects.
        """
        if not self.delivery_loop.drain(timeout):
            raise TimeoutError(f"no message within {timeout} s")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Serve the consumers from kombu's event loop."""
        self.delivery_loop.attach(loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Leave the event loop."""
        if self._delivery_loop is not None:
            self._delivery_loop.detach()

    def on_readable(self, fileno: int) -> None:
        """Do nothing: the delivery_loop has callbacks of its own."""

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the connection's URL, transport options in its query included, as it can be read and used again.

        kombu's own way (5.6, 5.7) would print the query as a part of the database's name: `/0%3Fvisibility_timeout%3D60`.
        """
        from kombu.utils.url import as_url, maybe_sanitize_url, quote

        client = self.client
        if url_sentinels.names_several_hosts(uri):
            whole = f"{client.uri_prefix}+{url_sentinels.with_secrets(client)}"
            return whole if include_password else url_sentinels.masked(whole, mask)
        if client.uri_prefix:
            socket = f"{client.uri_prefix}+{uri}"
            return socket if include_password else str(maybe_sanitize_url(socket, mask=mask))
        info = client.info()
        password = info["password"] if include_password else mask
        database, question_mark, options = str(info["virtual_host"] or "").partition("?")
        text = as_url(
            info["transport"], uri or "localhost", info["port"], info["userid"], password() if callable(password) else password,
            quote(database), sanitize=not include_password, mask=mask,
        )  # fmt: skip
        return f"{text}{question_mark}{options}"


def _may_be_the_end(active_tasks: ActiveTasks | None) -> bool:
    """Return whether the process may end now, and not only replace a connection, as a worker does that goes on."""
    return active_tasks is None or active_tasks.is_stopping() or active_tasks.stop_requested()


def _end_wait(consumer: ConsumerSession) -> None:
    """Cancel a wait for wake-ups; one that has come meanwhile goes to another consumer."""
    try:
        if consumer.waiter.waiting and not consumer.session.broken:
            consumer.waiter.cancel_wait()
    except CONNECTION_ERRORS:
        consumer.session.abandon()
