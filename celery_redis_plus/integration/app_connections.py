"""Resolves the URLs of a configured app's connections: its settings, in our schemes, read for each connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.host_lists import SENTINEL_SCHEME
from celery_redis_plus.integration import compat
from celery_redis_plus.integration.broker_urls import ALLOWED, check_broker, has_dotted_url, our_transport, our_urls, scheme_of
from celery_redis_plus.transport.typed_queues import Accepted
from celery_redis_plus.transport.url_schemes import OWN_SCHEMES
from celery_redis_plus.transport.url_sentinels import names_several_hosts

if TYPE_CHECKING:
    from celery_redis_plus.integration.ack_policies import AckPolicies

GroupOf = Callable[[str, Sequence[Any], Mapping[str, Any]], str | int | None]

logger = logging.getLogger(__name__)

#: The settings that hold broker URLs.
URL_SETTINGS = ("broker_url", "broker_read_url", "broker_write_url")
#: Transport options that only kombu's redis transport knows, for its priorities.
KOMBU_PRIORITY_OPTIONS = ("priority_steps", "sep")


class Connections:
    """Takes the place of `app._connection`, the one function by which Celery (5.6, 5.7) makes every broker connection.

    The settings themselves stay as the user wrote them, so what is changed later counts too. Exception: a URL with the
    transport's import path as its scheme, which `celery report` and `inspect conf` cannot read, is stored as its alias.
    """

    def __init__(self, app: Any) -> None:
        """Wrap what `app` connects with now."""
        self._app = app
        self._connection = compat.CONNECT.of(app)
        self._warned = False
        #: Other brokers that the log has named.
        self._others: set[str] = set()
        #: The option of this name, for connections to our broker.
        self.accept: dict[str, Any] | None = None
        #: The same; the app's own `broker_transport_options` go first.
        self.event_log: bool | None = None
        #: Names the message group of a task that is sent, by its name and arguments.
        self.group_of: GroupOf | None = None
        #: Rules of limiters by their names.
        self.limiters: dict[str, str] = {}
        #: None: Celery's settings hold.
        self.ack_policies: AckPolicies | None = None

    def __call__(self, url: Any, *args: Any, **options: Any) -> Any:
        """Return a kombu Connection; the arguments are those of `Celery._connection`.

        Raises:
            InvalidAddress: as `addresses.check_broker`.
        """
        self._make_readable()
        urls, transport = rewritten(url, options.pop("transport", None) or self._app.conf.broker_transport)
        other = check_broker(urls, transport)
        if other is not None:
            self._name_other(other)
        else:
            if not self._warned:
                self._warned = True
                warn_about_priorities(self._app)
            added: dict[str, Any] = {} if self.accept is None else {"accept": Accepted(self.accept)}
            if self.event_log is not None and (self._app.conf.broker_transport_options or {}).get("event_log") is None:
                added["event_log"] = self.event_log
            if added:
                options["transport_options"] = {**added, **(options.get("transport_options") or {})}
        return self._connection(urls, *args, transport=transport, **options)

    def _name_other(self, other: str) -> None:
        """Say once that another broker is used: an app may have one for its tests, such as `memory://`."""
        if other in self._others:
            return
        self._others.add(other)
        logger.warning(
            "app %r was given to configure_app, and its broker is %r, which celery-redis-plus does not serve: its options, ack "
            "policies and promises have no effect there. Brokers that it serves: %s",
            self._app.main, other, ALLOWED,
        )  # fmt: skip

    def _make_readable(self) -> None:
        conf = self._app.conf
        for setting in URL_SETTINGS:
            urls = conf.get(setting)
            if has_dotted_url(urls):
                conf[setting] = our_urls(urls)


def connections_of(app: Any) -> Connections | None:
    """Return what makes the connections of a configured app; None for another app."""
    # Of the instance: the class has Celery's own method.
    connections = app.__dict__.get(compat.CONNECT.name)
    return connections if isinstance(connections, Connections) else None


def rewritten(urls: Any, transport: Any) -> tuple[Any, Any]:
    """Return (URLs, transport) as kombu shall see them."""
    urls, transport = our_urls(urls), our_transport(transport)
    if transport == SENTINEL_SCHEME and names_several_hosts(urls if isinstance(urls, str) else next(iter(urls or ()), None)):
        # kombu's name for what the URL says as well.
        transport = None
    if is_ours(urls, transport):
        # A URL's scheme says more than the transport: whether TLS is wanted.
        transport = scheme_of(urls) or transport
    return urls, transport


def is_ours(urls: Any, transport: Any) -> bool:
    """Return whether translated settings lead to our transport: `broker_transport` goes before the URL's scheme."""
    return transport in OWN_SCHEMES if transport else scheme_of(urls) is not None


def publishes_to_us(app: Any) -> bool:
    """Return whether the messages of `app` go to our broker."""
    conf = app.conf
    return is_ours(*rewritten(conf.broker_write_url, conf.broker_transport))


def warn_about_priorities(app: Any) -> None:
    """Warn where the settings show that the app lived with kombu's redis priorities, and do not say what shall hold now."""
    options = app.conf.broker_transport_options
    if not isinstance(options, Mapping) or options.get("priority_order") is not None:
        return
    old = [option for option in KOMBU_PRIORITY_OPTIONS if option in options]
    if old:
        logger.warning(
            "broker_transport_options has %s of kombu's redis transport, where priority 0 is the FIRST to be delivered; here 255 "
            "is. Choose the option priority_order: 'low-first' keeps what the priorities of this app mean, 'high-first' (the "
            "default, as RabbitMQ) turns them round; setting it silences this warning",
            " and ".join(old),
        )
