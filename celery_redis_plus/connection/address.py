"""Where the server is and how to log in: from a URL, or from the parts into which kombu has taken it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from celery_redis_plus.connection.cluster_address import Cluster
from celery_redis_plus.connection.credentials import resolve_credential_provider
from celery_redis_plus.connection.host_lists import CLUSTER_SCHEME, SENTINEL_SCHEME, hosts_of, kind_of, server_text
from celery_redis_plus.connection.tls import is_tls_argument, tls_arguments
from celery_redis_plus.errors import InvalidAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.credentials import CredentialProvider

    from celery_redis_plus.connection.sentinel_address import Sentinels

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 6379

_SCHEMES = frozenset({"redisplus", "redis", "valkey"})
_TLS_SCHEMES = frozenset({"redispluss", "rediss", "valkeys"})
_SOCKET_SCHEMES = frozenset({"socket", "unix"})

#: Names in a URL's query that are part of the address; the others are transport options (see `url_options`).
_QUERY = frozenset({"virtual_host", "db", "username", "password", "credential_provider"})
_SENTINEL_QUERY = frozenset({"master_name", "min_other_sentinels", "sentinel_username", "sentinel_password"})


@dataclass(frozen=True, slots=True)
class Address:
    """One server and database, and the credentials for it. Printing it shows no secrets.

    `tls` holds redis-py's `ssl_*` arguments, or None for a connection without TLS; `path` is a Unix socket,
    which leaves host and port without meaning; a `credential_provider` takes the place of user name and
    password. `sentinels`, or the nodes of a `cluster`, are asked for host and port, which are '' and 0 until then; the
    credentials are the master's, and those of all nodes.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    path: str | None = None
    tls: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    credential_provider: CredentialProvider | None = field(default=None, repr=False, hash=False)
    sentinels: Sentinels | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if self.cluster is not None and self.db:
            raise InvalidAddress(
                f"database {self.db} is not allowed in the URL of a Redis Cluster; allowed: 0. There another `global_keyprefix` "
                "keeps apps apart"
            )
        if self.path and self.tls is not None:
            raise InvalidAddress(f"no TLS is possible over the Unix socket {self.path!r}; leave out the ssl options")

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Return the address in `url`: `redisplus://[user:password@]host[:port][/db][?ssl_ca_certs=...]`.

        Schemes: redisplus, redis, valkey; with TLS redispluss, rediss, valkeys; and `+socket` after any of
        the former, or `socket` alone, for
        `redisplus+socket://[user:password@]/path/of/socket?virtual_host=db`. User name, password and path are
        percent-decoded. TLS checks the server's certificate unless `ssl_cert_reqs` says otherwise. Transport
        options in the query are left to `url_options`.

        Sentinels: `redisplus+sentinel://[user:password@]host[:port];host[:port][/db]?master_name=NAME`, with `,` or `;`
        between them; any of the schemes may stand before `+sentinel`, with TLS for master and Sentinels where it has TLS.
        Redis Cluster: `redisplus+cluster://[user:password@]host[:port];host[:port]/0` in the same way.

        Raises:
            InvalidAddress: unknown scheme, bad port or database number, unknown TLS option.
        """
        return cls._build(**_parts_of(url))

    @classmethod
    def from_parts(
        cls,
        *,
        scheme: object = None,
        hostname: str | None = None,
        port: int | str | None = None,
        virtual_host: int | str | None = None,
        username: str | None = None,
        password: str | None = None,
        ssl: Mapping[str, Any] | bool | None = None,
        credential_provider: Any = None,
    ) -> Address:
        """Return the address for the attributes of a kombu Connection, which has taken the URL apart already.

        A `hostname` that is itself a URL is one that kombu left alone (`redisplus+socket:///path` arrives
        as `socket:///path`); what stands in it goes before the other arguments. `scheme` is kombu's
        `transport_cls`: for `redispluss` and the like, kombu (5.7) does not set `ssl` itself, and the
        connection would silently be plain. `ssl` is Celery's `broker_use_ssl` or what kombu found in the
        query: True, or a mapping as in `tls.tls_arguments`. Behind a `?` in `virtual_host` stand transport
        options, which are left to `url_options`.

        Raises:
            InvalidAddress: bad port or database number, unknown TLS option.
            InvalidArgument: the credential provider is none.
        """
        parts: dict[str, Any] = {
            "host": hostname,
            "port": port,
            "virtual_host": virtual_host.partition("?")[0] if isinstance(virtual_host, str) else virtual_host,
            "username": username,
            "password": password,
            "tls": tls_arguments(ssl or scheme in _TLS_SCHEMES),
            "credential_provider": credential_provider,
        }
        if hostname and "://" in hostname:
            inner = {name: value for name, value in _parts_of(hostname).items() if value is not None}
            parts |= {"host": None, **inner}
            sentinels = parts.get("sentinels")
            if sentinels is not None and scheme in _TLS_SCHEMES and sentinels.tls is None:
                parts["sentinels"] = replace(sentinels, tls=parts["tls"])
        return cls._build(**parts)

    @classmethod
    def _build(  # noqa: PLR0913 - the parts of an address
        cls,
        *,
        host: str | None = None,
        port: int | str | None = None,
        path: str | None = None,
        virtual_host: int | str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: Mapping[str, Any] | None = None,
        credential_provider: Any = None,
        sentinels: Sentinels | None = None,
        cluster: Cluster | None = None,
    ) -> Address:
        provider = resolve_credential_provider(credential_provider)
        asks = sentinels or cluster
        return cls(
            host=host or ("" if asks else DEFAULT_HOST),
            port=0 if asks and not host else _port(port),
            db=_db(virtual_host),
            # redis-py refuses a provider together with a user name or password.
            username=(username or None) if provider is None else None,
            password=(password or None) if provider is None else None,
            path=path or None,
            tls=tls,
            credential_provider=provider,
            sentinels=sentinels,
            cluster=cluster,
        )

    @property
    def server(self) -> str:
        """The server without the database: `host:port`, the socket's path, or those to be asked where they were not asked yet."""
        if self.path:
            return self.path
        asks = self.sentinels or self.cluster
        if asks is not None and not self.host:
            return asks.servers
        return server_text(self.host, self.port)

    def at_master(self, host: str, port: int) -> Address:
        """Return this address with the master that was named."""
        return replace(self, host=host, port=port)

    def display(self) -> str:
        """Return the address for messages and logs, as a URL without user name and password.

        Where a master was named, it stands behind.
        """
        scheme = "redisplus" if self.tls is None else "redispluss"
        if self.cluster is not None:
            url = f"{scheme}+{CLUSTER_SCHEME}://{self.cluster.servers}/{self.db}"
            return f"{url} (node {self.server})" if self.host else url
        if self.sentinels is not None:
            url = (
                f"{scheme}+{SENTINEL_SCHEME}://{self.sentinels.servers}/{self.db}?master_name={quote(self.sentinels.master_name)}"
            )
            return f"{url} (master {self.server})" if self.host else url
        if self.path:
            return f"redisplus+socket://{self.path}?virtual_host={self.db}"
        return f"{scheme}://{self.server}/{self.db}"


def url_options(url: str) -> dict[str, str]:
    """Return the transport options in a URL's query, such as `?visibility_timeout=60`, as Options takes them.

    Raises:
        InvalidAddress: the query cannot be parsed.
    """
    scheme, _, rest = url.partition("://")
    names = _QUERY | _SENTINEL_QUERY if rest and kind_of(scheme) == SENTINEL_SCHEME else _QUERY
    query = _query(url.partition("#")[0].partition("?")[2])
    return {name: value for name, value in query.items() if name not in names and not is_tls_argument(name)}


def check_host(url: str) -> None:
    """Raise InvalidAddress where a URL has no valid host or port.

    Nothing of an unparsable URL is printed, and the parser's own errors are not chained: with an unescaped "/" or "#" in a
    password, they quote a piece of it.
    """
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise InvalidAddress(f"the broker URL has no valid host or port (1 to 65535). {_ESCAPE}") from None


_ESCAPE = "Special characters in a password are percent-encoded: / as %2F, # as %23, ? as %3F, @ as %40"


def _parts_of(url: str) -> dict[str, Any]:
    """Return what stands in `url` as the arguments of `Address._build`; what does not, is absent or None."""
    kind = kind_of(url.partition("://")[0])
    if kind is not None:
        return _parts_of_hosts(url, kind)
    check_host(url)
    parts = urlsplit(url)
    port = parts.port
    scheme = parts.scheme.lower()
    transport, _, suffix = scheme.partition("+")
    is_socket = suffix in _SOCKET_SCHEMES or transport in _SOCKET_SCHEMES
    if transport not in _SCHEMES | _TLS_SCHEMES | _SOCKET_SCHEMES or suffix not in _SOCKET_SCHEMES | {""}:
        known = ", ".join(sorted(_SCHEMES | _TLS_SCHEMES))
        raise InvalidAddress(
            f"unknown scheme {scheme!r} in the broker URL; known: {known}, redisplus+socket, "
            "redisplus+sentinel, redisplus+cluster"
        )
    if parts.fragment or "@" in parts.query or ("@" in parts.path and not is_socket):
        raise InvalidAddress(f"the broker URL has a '#', or an '@' behind the host. {_ESCAPE}")
    path = unquote(parts.path) or None
    query = _query(parts.query)
    tls = {name: value for name, value in query.items() if is_tls_argument(name)}
    return {
        "host": None if is_socket else unquote(parts.hostname or "") or None,
        "port": port,
        "path": path if is_socket else None,
        "virtual_host": query.get("virtual_host")
        or query.get("db")
        or (None if is_socket or path is None else path.removeprefix("/")),
        "username": query.get("username") or unquote(parts.username or "") or None,
        "password": query.get("password") or unquote(parts.password or "") or None,
        "tls": tls_arguments(tls or transport in _TLS_SCHEMES),
        "credential_provider": query.get("credential_provider"),
    }


def _parts_of_hosts(url: str, kind: str) -> dict[str, Any]:
    """Do the same for a URL with several hosts, of which `urlsplit` reads only one."""
    scheme, _, rest = url.partition("://")
    transport = scheme.lower().partition("+")[0]
    if transport not in _SCHEMES | _TLS_SCHEMES | {kind}:
        known = ", ".join(f"{name}+{kind}" for name in sorted(_SCHEMES | _TLS_SCHEMES))
        raise InvalidAddress(f"unknown scheme {scheme!r} in the broker URL; known with +{kind}: {known}")
    place, _, query_text = rest.partition("?")
    netloc, _, path = place.partition("/")
    user, _, hosts = netloc.rpartition("@")
    if "#" in rest or "@" in path or "@" in query_text:
        raise InvalidAddress(f"the broker URL has a '#', or an '@' behind the hosts. {_ESCAPE}")
    username, _, password = user.partition(":")
    query = _query(query_text)
    tls = tls_arguments({name: value for name, value in query.items() if is_tls_argument(name)} or transport in _TLS_SCHEMES)
    parts = {
        "virtual_host": query.get("virtual_host") or query.get("db") or unquote(path) or None,
        "username": query.get("username") or unquote(username) or None,
        "password": query.get("password") or unquote(password) or None,
        "tls": tls,
        "credential_provider": query.get("credential_provider"),
    }
    if kind == CLUSTER_SCHEME:
        return parts | {"cluster": Cluster(hosts_of(hosts, kind))}
    others = query.get("min_other_sentinels") or "0"
    if not others.isascii() or not others.isdigit():
        raise InvalidAddress(f"min_other_sentinels={others!r} is not allowed; allowed: a number from 0")
    # Most programs do without it.
    from celery_redis_plus.connection.sentinel_address import Sentinels

    sentinels = Sentinels(
        hosts_of(hosts, kind),
        master_name=query.get("master_name", ""),
        min_other_sentinels=int(others),
        username=query.get("sentinel_username") or None,
        password=query.get("sentinel_password") or None,
        tls=tls if transport in _TLS_SCHEMES else None,
    )
    return parts | {"sentinels": sentinels}


def _query(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text)))
    except ValueError:
        raise InvalidAddress(f"the query of the broker URL is not ?name=value&name=value. {_ESCAPE}") from None


def _port(value: int | str | None) -> int:
    if not value:
        return DEFAULT_PORT
    try:
        port = int(value)
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise InvalidAddress(f"port {value!r} is not allowed; allowed: 1 to 65535")
    return port


def _db(value: int | str | None) -> int:
    if isinstance(value, int) and value >= 0:
        return value
    text = str("" if value is None else value).removeprefix("/")
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise InvalidAddress(
            f"database {text!r} is not allowed; allowed: a number from 0, less than the server's `databases` (16 by default)"
        )
    return int(text)
