"""Opening connections: redis-py's own classes, with everything explicit in which its versions differ."""

from __future__ import annotations

import functools
import inspect
import logging
import socket
import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from redis import __version__ as redis_version
from redis._parsers.encoders import Encoder
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, PythonRespSerializer, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import NoPermissionError, ResponseError
from redis.retry import Retry

from celery_redis_plus.connection.cluster_address import one_slot_prefix
from celery_redis_plus.connection.credentials import Credentials, credentials_of, resolve_credential_provider
from celery_redis_plus.connection.server_check import ServerCheck
from celery_redis_plus.connection.tls import check_files, completed_tls
from celery_redis_plus.error_translation import UNKNOWN_COMMAND, translate
from celery_redis_plus.errors import (
    InvalidAddress,
    NotRedis,
    ReadOnlyReplica,
    ServerTimeout,
    ServerUnavailable,
    ServerUnreachable,
)
from celery_redis_plus.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.connection.master_question import Question
    from celery_redis_plus.connection.masters import MasterConnections, MasterFinder
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Bytes from which redis-py sends an argument as a piece of its own, as it does by itself.
_PIECE_BYTES = 6000
#: What this process has found out of servers so far. A Connector can be given another one.
PROCESS_CHECK = ServerCheck()


class Connector:
    """Opens connections to one address. Thread-safe, and of use in a forked child.

    Attributes:
        address: where connections go, completed by the options `ssl` and `credential_provider`.
        options: the transport options they are made with; for a cluster, `global_keyprefix` has a hash tag.
        finder: asks the Sentinels, or the nodes of a cluster; None for one server.
        credentials: those of the option `credential_provider`; None without a provider.
        missing_replicas: as `ServerCheck` has it, of all connectors of the process.
    """

    def __init__(self, address: Address, options: Options, *, check: ServerCheck = PROCESS_CHECK) -> None:
        if address.cluster is not None:
            options = replace(options, global_keyprefix=one_slot_prefix(options.global_keyprefix))
        self.address = _completed(address, options)
        self.options = options
        self._check = check
        self.missing_replicas = check.missing_replicas
        #: Called with the purpose of each connection before it is opened; raises where that would be in vain.
        self.before_open: Callable[[str], None] = lambda _: None
        #: Providers may refuse CLIENT; names only help readers of CLIENT LIST.
        self._names_connections = True
        provider = self.address.credential_provider
        self.credentials: Credentials | None = None if provider is None else credentials_of(provider)
        self._masters: MasterConnections | None = None
        self.finder: MasterFinder | None = None
        if self.address.cluster is not None or self.address.sentinels is not None:
            from celery_redis_plus.connection.masters import MasterConnections

            self._masters = MasterConnections(self.address, options, connect=self._connect, connect_to_ask=self._connect_to_ask)
            self.finder = self._masters.finder

    @property
    def is_refusing(self) -> bool:
        """Whether the broker has refused a write since it took one, for the time being: a connection alone tells nothing."""
        return self.address.display() in self._check.refusing

    def note_refusal(self, error: Exception) -> None:
        """Note an error, if the broker has refused a write by it for the time being."""
        if isinstance(error, (ReadOnlyReplica, ServerUnavailable)):
            self._check.refusing.add(self.address.display())

    def note_write(self) -> None:
        """Note that the broker has taken a write."""
        self._check.refusing.discard(self.address.display())

    def open(self, purpose: str, *, timeout: float | None) -> Connection:
        """Return a new, connected connection: logged in, named, database selected, server checked.

        Setting it up takes at most `socket_connect_timeout` for the connection and for each reply, whatever
        `timeout` says. redis-py neither retries nor checks the connection's health by itself; the protocol is
        RESP2, replies are bytes.

        Args:
            purpose: what the connection is for, in one word; CLIENT LIST shows
                `celery-redis-plus:PURPOSE`, unless the option `client_name` is set.
            timeout: seconds that a later read or write may take, None for no limit (blocking commands).

        Raises:
            ServerUnreachable: no server listens, TLS fails or only one side speaks it (TlsFailed), too many clients. Celery
                retries this one and the next five.
            ServerTimeout: no connection, or no reply, in time.
            ServerLoading: the server reads its data set.
            ServerUnavailable: the server refuses for the time being.
            ReadOnlyReplica: the server takes no writes.
            AuthenticationFailed: wrong or missing user name or password.
            NoPermission: the user may not even SELECT.
            ServerTooOld: before Redis 7.0 or Valkey 7.2.
            InvalidAddress: a TLS file is missing, or the database number too high.
            MasterNotFound: for `socket_connect_timeout`, no Sentinel or node named a master that took the connection.
        """
        self.before_open(purpose)
        if self._masters is None:
            connection = self._connect(self.address, purpose, self._patience_s)
        else:
            connection = self._masters.open(purpose, self._patience_s)
        try:
            _set_timeout(connection, timeout)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    @property
    def _patience_s(self) -> float | None:
        return self.options.socket_connect_timeout or self.options.socket_timeout

    def _connect(self, address: Address, purpose: str, patience_s: float | None, *, checks: bool = True) -> Connection:
        """Return a connection to the server at `address`; with `checks` it is one that can store messages."""
        connection = self._new(address, purpose, patience_s)
        try:
            self._handshake(connection, address)
            if checks:
                if self.finder is not None:
                    self.finder.question.check(connection, address)
                self._check.run(connection, address)
        except Exception as exc:
            connection.disconnect()
            error = translate(exc, address)
            is_new = not self._check.knows(address) if checks else self.finder is None or self.finder.master is None
            if is_new and isinstance(error, ServerUnreachable | ServerTimeout | NotRedis):
                from celery_redis_plus.connection.tls_mismatch import mismatch

                error = mismatch(error, address) or error
            if error is exc:
                raise
            raise error from exc
        except BaseException:  # KeyboardInterrupt, gevent.Timeout: redis-py would leave the socket open
            connection.disconnect()
            raise
        return connection

    def _handshake(self, connection: Connection, address: Address) -> None:
        """Connect, without a name where the server knows no CLIENT, or the user may not give one."""
        try:
            connection.connect()
        except ResponseError as exc:
            unknown = UNKNOWN_COMMAND + "CLIENT" in str(exc)
            refused = isinstance(exc, NoPermissionError) and "client|setname" in str(exc).lower()
            if not self._names_connections or not (unknown or refused):
                raise
            why = "the server offers no CLIENT SETNAME" if unknown else "the user may not CLIENT SETNAME"
            logger.info("%s: connections have no names: %s", address.display(), why)
            self._names_connections = False
            connection.client_name = None
            connection.disconnect()
            connection.connect()

    def _connect_to_ask(self, address: Address, question: Question) -> Connection:
        """Return a connection to a Sentinel or a node, for `question`."""
        limits = [limit_s for limit_s in (question.timeout_s, self._patience_s) if limit_s is not None]
        return self._connect(address, question.purpose, min(limits, default=None), checks=False)

    def _new(self, address: Address, purpose: str, patience: float | None) -> Connection:
        options, provider = self.options, address.credential_provider
        arguments: dict[str, Any] = {
            "db": address.db,
            "username": address.username,
            "password": address.password,
            "credential_provider": None if provider is None else credentials_of(provider),
            "client_name": (options.client_name or f"celery-redis-plus:{purpose}") if self._names_connections else None,
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "health_check_interval": 0,
            # Not hiredis': `protocol.py` says why.
            "command_packer": PythonRespSerializer(_PIECE_BYTES, Encoder("utf-8", "strict", decode_responses=False).encode),
            "socket_timeout": patience,  # for the handshake, see _set_timeout
            "socket_connect_timeout": patience,
            **_version_dependent(),
        }
        if address.path is not None:
            # The two classes share all that callers use; redis-py's annotations know no common type for it.
            unix: Any = UnixDomainSocketConnection
            return cast("Connection", unix(path=address.path, **arguments))
        arguments |= {"host": address.host, "port": address.port, **_keepalive(options)}
        if address.tls is None:
            return Connection(**arguments)
        check_files(address.tls)
        return SSLConnection(**arguments, **address.tls)


def _completed(address: Address, options: Options) -> Address:
    """Return `address` with what the options add to it; what it says itself goes first."""
    if options.ssl:
        address = replace(address, tls=completed_tls(address.tls, options.ssl))
        if address.sentinels is not None and address.sentinels.tls is not None:
            address = replace(
                address, sentinels=replace(address.sentinels, tls=completed_tls(address.sentinels.tls, options.ssl))
            )
    if address.credential_provider is None and options.credential_provider:
        provider = resolve_credential_provider(options.credential_provider)
        address = replace(address, credential_provider=provider, username=None, password=None)
    if address.sentinels is not None:
        sentinels = address.sentinels.completed(options.master_name, options.sentinel_kwargs, options.min_other_sentinels)
        return replace(address, sentinels=sentinels)
    if address.cluster is not None:
        address = replace(address, cluster=address.cluster._replace(prefix=options.global_keyprefix))
    given = [name for name in ("master_name", "sentinel_kwargs", "min_other_sentinels") if getattr(options, name)]
    if given:
        raise InvalidAddress(
            f"{address.display()}: {', '.join(given)} need the address of Sentinels in broker_url: "
            "redisplus+sentinel://host1:26379;host2:26379/0"
        )
    return address


def _set_timeout(connection: AbstractConnection, timeout: float | None) -> None:
    """Replace the handshake's timeout by `timeout`, in the three places where redis-py keeps one.

    The handshake needs a limit of its own: a server that accepts and never answers would hang a connection
    made for blocking calls (timeout None) for ever.
    """
    connection.socket_timeout = timeout
    sock: Any = connection._sock  # noqa: SLF001 - redis-py 6.4 has no public way to change a timeout
    if timeout is not None and _is_plain(sock):
        # Python polls before each call on a socket with a timeout; the kernel's own timeouts save that call (6 % of a publish).
        limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1_000_000))
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    else:
        sock.settimeout(timeout)
    # The parser takes its timeout when it is started: start it anew; nothing is unread after the handshake.
    connection._parser.on_connect(connection)  # noqa: SLF001 - as above


def _is_plain(sock: Any) -> bool:
    """Return whether `sock` is the operating system's blocking socket: no TLS, and neither gevent's nor eventlet's."""
    return sys.platform in {"linux", "darwin"} and type(sock).__module__ == "socket"


def _keepalive(options: Options) -> dict[str, Any]:
    if options.socket_keepalive is False:
        return {"socket_keepalive": False, "socket_keepalive_options": {}}
    chosen = options.socket_keepalive_options
    chosen = _default_keepalive() if chosen is None else chosen
    return {"socket_keepalive": True, "socket_keepalive_options": dict(chosen)}


def _default_keepalive() -> dict[int, int]:
    """Return redis-py 8's values for every version: a vanished peer is noticed after 45 s."""
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}


@functools.cache
def _version_dependent() -> dict[str, Any]:
    """Return what only some versions of redis-py (6.4 to 8.1) take: our name, and no maintenance notices."""
    accepted = inspect.signature(AbstractConnection.__init__).parameters
    arguments: dict[str, Any] = {}
    if "driver_info" in accepted:
        from redis import DriverInfo

        # With its version, which it would look up in its installation for 3 ms.
        arguments["driver_info"] = DriverInfo(lib_version=redis_version).add_upstream_driver("celery-redis-plus", __version__)
    else:
        arguments["lib_name"] = f"redis-py(celery-redis-plus_v{__version__})"
        arguments["lib_version"] = redis_version
    if "maint_notifications_config" in accepted:
        from redis.maint_notifications import MaintNotificationsConfig

        arguments["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    return arguments
