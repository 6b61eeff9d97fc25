"""kombu's transport on our broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import redis
from kombu.transport import base, virtual
from kombu.utils.imports import symbol_by_name

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.consumer.publisher_session import PublisherSession
from celery_redis_plus.errors import ChannelClosed, OptionError
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

#: What composes several brokers to one connection, by the option that asks for it. It stands above this room, and is loaded then.
COMPOSERS = {"shards": "celery_redis_plus.shards.transport:ShardsTransport"}

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

    session: PublisherSession
    #: It leads to one of several brokers.
    is_part = False
    #: What serves the consumers; None before there are any.
    _delivery_loop: DeliveryLoop | None = None

    def __new__(cls, client: Any, **_: Any) -> Self:
        """Return a connection to one broker, or to several, as `client` asks for by an option of `COMPOSERS`."""
        url_sentinels.mend(client)
        composers = [composer for option, composer in COMPOSERS.items() if cls is Transport and _asks_for(option, client)]
        chosen = symbol_by_name(composers[0]) if composers else cls
        return cast("Self", super().__new__(chosen))

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
        session = self._open_session(self.read_options())
        if self._connected and self._delivery_loop is not None:
            # kombu replaces a broken connection without closing it; nothing of it may stay in an event loop.
            self._delivery_loop.detach()
        self.session, self._delivery_loop = session, None
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

                    self._delivery_loop = DeliveryLoop(ConsumerSession(self.session), HUB_READY.of)
        return self._delivery_loop

    def _open_session(self, options: Options) -> PublisherSession:
        """Connect. Raises as `establish_connection` does."""
        if options.shards > 1 and not self.is_part:
            raise OptionError(
                f"transport option shards={options.shards} is not allowed for {type(self).__name__}; allowed is shards=1, or "
                "celery_redis_plus.Transport itself"
            )
        return PublisherSession(
            self.read_address(),
            options,
            self.client,
            acceptance=TypeCheck(options.accept),
            ignores_unroutable=partial(framework_hooks.ignores_unroutable, options.ignore_unroutable_exchanges),
        )

    @property
    def options(self) -> Options:
        """The transport options that it has connected with."""
        return self.session.options

    @property
    def name(self) -> str:
        """What the broker is called among several, with a space behind it; empty where it is the only one."""
        return ""

    def serve_worker(self) -> None:
        """Note that a worker consumes over it."""

    def each_broker(self, tell: Callable[[Transport], object]) -> None:
        """Call `tell` with the transport to each broker, now or when it is connected to: with this one."""
        tell(self)

    @property
    def brokers(self) -> tuple[Transport, ...]:
        """The transports to all brokers that the connection leads to: this one."""
        return (self,)

    def broker(self, _: int) -> Transport:
        """Return the transport to the broker of a number, connecting to it where it is not open: this one."""
        return self

    def of_queue(self, queue: str) -> Transport:
        """Return the transport to the broker that has a queue: this one."""
        return self

    def read_address(self) -> Address:
        """Return where the kombu Connection leads to."""
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

    def read_options(self) -> Options:
        """Return its transport options, those in the URL first. Raises as `establish_connection` does."""
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

        Raises:
            ChannelClosed: the kombu connection was released, and so leads nowhere.
        """
        if connection is None:
            raise ChannelClosed("the connection was released; open a new one")
        transport = connection if isinstance(connection, Transport) else self
        channel = transport.Channel(transport)
        transport.channels.append(channel)
        return channel

    def read_broadcasts_again(self, queue: str) -> None:
        """Let all channels that consume a queue read what it is bound to now."""
        for channel in self.channels:
            if channel.has_consumers:
                channel.fanout_consumer.subscribe(queue)

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the connection; what waits to be settled goes out first."""
        if not self._connected:
            return
        self._connected = False
        if self._delivery_loop is not None:
            self._delivery_loop.detach()
            _end_wait(self._delivery_loop.server.session)
        while self.channels:
            self.channels[-1].close()
        if self.session.broken:
            self.session.abandon()
        self.session.close()
        self._flush()

    def _flush(self) -> None:
        """Wait until what is settled is confirmed, where the process may end now."""
        service = self.session.shared.service
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
        if not self.session.broken and self.session.commands.connected:
            return True
        if self._delivery_loop is None:
            return False
        return self._delivery_loop.attached or any(
            channel.has_consumers and channel.queue_consumers.consumed for channel in self.channels
        )

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


def _asks_for(option: str, client: Any) -> bool:
    """Return whether options or URL of `client` give an option a value other than 1; whether that is allowed is read later."""
    in_url = f"{option}=" in str(client.virtual_host) or f"{option}=" in str(client.hostname)
    return in_url or str((client.transport_options or {}).get(option) or 1) != "1"


def _may_be_the_end(active_tasks: ActiveTasks | None) -> bool:
    """Return whether the process may end now, and not only replace a connection, as a worker does that goes on."""
    return active_tasks is None or active_tasks.is_stopping() or active_tasks.stop_requested()


def _end_wait(consumer: ConsumerSession) -> None:
    """Cancel a wait for wake-ups; one that has come meanwhile goes to another consumer."""
    try:
        if consumer.waiter.waiting and not consumer.broken:
            consumer.waiter.cancel_wait()
    except CONNECTION_ERRORS:
        consumer.publisher_session.abandon()
