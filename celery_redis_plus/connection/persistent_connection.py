"""One persistent server connection: opened at first use, checked after idle time, closed at the first failure."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_redis_plus import clock
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.forks import this_process
from celery_redis_plus.connection.protocol import pack_command, replies_of, send
from celery_redis_plus.connection.unpatched import identity
from celery_redis_plus.error_translation import translate
from celery_redis_plus.errors import WRONG_SERVER, AuthenticationFailed, ServerUnreachable

if TYPE_CHECKING:
    from redis.connection import Connection

    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.connection.credentials import Login
    from celery_redis_plus.connection.masters import MasterFinder

logger = logging.getLogger(__name__)

#: Seconds after which a connection tries to log in again that was refused, where there are no newer credentials before.
LOGIN_RETRY_S = 10.0
#: Seconds of idle time after which a connection is checked before it is used again.
IDLE_CHECK_S = 2.0

PING = pack_command((b"PING",))
CLIENT_ID = pack_command((b"CLIENT", b"ID"))

#: What a script or a command takes as one argument.
Argument = bytes | str | int | float


class PersistentConnection:
    """A connection of one process, shared by its threads under `lock`; a forked child opens one of its own."""

    def __init__(self, connector: Connector, purpose: str, *, timeout: float | None, learns_id: bool = False) -> None:
        """Prepare a connection.

        Args:
            connector: opens it.
            purpose: what it is for, in one word.
            timeout: bounds each read and write, in seconds.
            learns_id: ask the server for the client id whenever it is opened.
        """
        self.connector = connector
        self.purpose = purpose
        self.timeout = timeout
        self._learns_id = learns_id
        #: Called when an open connection failed, or one could not be opened: what its user had begun over it may be half done.
        #: A close in order, or of an idle connection, does not count.
        self.on_failure: Callable[[], None] = lambda: None
        self._reset()
        forks.on_fork_in_child(self)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._pid = this_process.pid
        self._connection: Connection | None = None
        #: What the socket's descriptor stands for: a program that turns into a daemon closes it behind our back.
        self._identity: tuple[int, int] | None = None
        #: Closes the connection where the collector finds this object: it was never closed.
        self._closer: weakref.finalize[Any, Any] | None = None
        self._used = 0.0
        #: Returns the next reply of the connection; raises what it says, or its failure.
        self._read: Callable[[], Any] = _not_connected
        #: Tells whether `_read` has something at hand, were it the end of the connection.
        self._arrived: Callable[[], bool] = _nothing
        #: Counts the connections that were opened: two sockets may have the same file descriptor, one after the other.
        self.generation = 0
        #: The server's number of the last connection; None where it was not asked, or does not tell.
        self.client_id: int | None = None
        #: When that one was opened, on `clock`, in seconds.
        self.opened_at = 0.0
        #: Where that one leads to, `(host, port)`; with Sentinels or a cluster, another server after a failover.
        self.peer: tuple[str, int] = ("", 0)
        #: With which credentials it has logged in, or tried to; None without a provider.
        self._login: Login | None = None
        #: When to try again after a refusal, on `clock`, in seconds.
        self._login_retry_at = inf

    @property
    def connected(self) -> bool:
        """Whether there is a connection of this process that has not failed."""
        return self._connection is not None and self._pid == this_process.pid

    @property
    def idle_s(self) -> float:
        """Seconds since something was sent."""
        return clock.now_s() - self._used

    @property
    def connection(self) -> Connection | None:
        """The redis-py connection; Celery bounds its socket when the peer went silent."""
        return self._connection

    @property
    def has_pending(self) -> bool:
        """Whether a reply is outstanding, so that something readable is no end of file."""
        return False

    def fileno(self) -> int:
        """Return the socket's file descriptor.

        Raises:
            ServerUnreachable: there is no connection: it was lost, or it is the parent process's.
        """
        sock = _socket_of(self._connection)
        if sock is None:
            raise ServerUnreachable(f"{self.purpose}: this process has no connection to {self.connector.address.display()}")
        return int(sock.fileno())

    def connect(self) -> None:
        """Open the connection if it is not open.

        Raises:
            redis.exceptions.ConnectionError: and its kin from `errors`; what the server said, and what to do.
        """
        self._check_process()
        with self.lock:
            self._open()

    def check_master(self) -> None:
        """Leave a server that is the master no more, as far as this process knows; asks no other.

        Raises:
            ServerUnreachable: another one was named since the connection was opened.
        """
        finder = self.connector.finder
        if finder is not None and self.connected and finder.has_moved(*self.peer):
            address = self.connector.address.at_master(*self.peer)
            error = ServerUnreachable(f"{address.display()}: the {finder.question.wanted} is another server by now")
            self.abort(error)
            raise error

    @property
    def login_due(self) -> bool:
        """Whether it is open, and has to log in again: with newer credentials than before."""
        login, credentials = self._login, self.connector.credentials
        if login is None or credentials is None or not self.connected:
            return False
        outdated = credentials.is_outdated(login, self.connector.options.credential_max_age)
        return outdated or clock.now_s() >= self._login_retry_at

    def renew_login(self) -> None:
        """Log in again if that is due, on a connection on which nothing waits. Raises as `connect` does."""
        if self.login_due:
            with self.lock:
                self._open()

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return this process's lock, for calls that belong together: a parent's may have been held at the fork."""
        if self._pid != this_process.pid:
            self._after_fork()
        return self.lock

    def close(self) -> None:
        """Read the pending replies, then close. Never raises."""
        if self._pid != this_process.pid:
            self._after_fork()
            return
        with self.lock:
            if self._connection is None:
                return
            self._drain()
            # Finishing may have met a failure, which closes as well.
            self._disconnect()

    def abort(self, error: Exception | None = None) -> None:
        """Drop the connection without reading anything, as after a failure."""
        if self._pid != this_process.pid:
            self._after_fork()
            return
        with self.lock:
            self._fail(error or ConnectionError(f"{self.purpose} was aborted"))

    # -- inside the lock ----------------------------------------------------------------------------------------------

    def _open(self) -> Connection:
        now = clock.now_s()
        idle_s, self._used = now - self._used, now
        if idle_s > IDLE_CHECK_S:
            self._read_arrived()
            if self._connection is not None and not self.has_pending:
                self._drop_if_dead(self._connection, idle_s)
        if self.connector.finder is not None:
            self._leave_old_master(self.connector.finder)
        connection = self._connection
        if connection is None:
            try:
                connection = self._open_anew(now)
            except BaseException:
                # An interrupt may leave it half set up.
                self._disconnect()
                # What it raises leaves here as that of an open connection does, so its user ends in the same way.
                self.on_failure()
                raise
        elif self._login is not None and self.login_due:
            self._log_in_again(connection)
        return connection

    def _open_anew(self, now: float) -> Connection:
        """Open a connection at `now`, on `clock`, in seconds. Raises as `connect` does."""
        credentials = self.connector.credentials
        self._login, self._login_retry_at = None if credentials is None else credentials.login(), inf
        connection = self._connection = self.connector.open(self.purpose, timeout=self.timeout)
        if self.connector.finder is not None:
            self.connector.finder.looks.join(self)
        self._read, self._arrived = replies_of(connection)
        self._identity = identity(self.fileno())
        self._closer = weakref.finalize(self, _close, connection)
        self._closer.atexit = False
        self.generation += 1
        self.opened_at = now
        self.peer = (getattr(connection, "host", ""), getattr(connection, "port", 0))
        if self._learns_id:
            self._learn_id(connection)
        self._opened()
        return connection

    def _leave_old_master(self, finder: MasterFinder) -> None:
        """Ask who the master is, if it is time to. Raises as `check_master` does."""
        if self._connection is not None:
            finder.look()
            self.check_master()

    def _learn_id(self, connection: Connection) -> None:
        """Ask the server for the id of a new connection. Raises as `connect` does, except where the server refuses."""
        try:
            send(connection, CLIENT_ID)
            self.client_id = int(self._read())
        except ResponseError:
            # Not permitted, or renamed.
            self.client_id = None
        except Exception as error:
            raise self._translated(error) from error

    def _log_in_again(self, connection: Connection) -> None:
        """Send AUTH and read the reply. A refusal is logged: the server decides how long the old credentials are good for."""
        packed = self._packed_login()
        if packed:
            try:
                send(connection, packed)
                self._read()
            except (AuthenticationError, ResponseError) as error:
                self._note_refused_login(error)
            except BaseException as error:  # noqa: BLE001 - it is raised
                self._fail_and_raise(error)

    def _packed_login(self) -> bytes:
        """Return an AUTH with the newest credentials; empty where there are none."""
        credentials = self.connector.credentials
        if credentials is None:
            return b""
        self._login, self._login_retry_at = credentials.login(), inf
        try:
            return pack_command((b"AUTH", *credentials.get_credentials()))
        except AuthenticationFailed as error:
            self._note_refused_login(error)
            return b""

    def _note_refused_login(self, error: Exception) -> None:
        """Log that the newest credentials are of no use, and try again soon."""
        self._login_retry_at = clock.now_s() + LOGIN_RETRY_S
        logger.warning("%s: logging in again failed: %s", self.purpose, self._translated(error))

    def _drop_if_dead(self, connection: Connection, idle_s: float) -> None:
        """Notice that an idle connection is gone before a command is written to it: then its outcome is never unknown.

        An end of file tells of a server or a firewall that closed it; after `health_check_interval` a PING finds those that
        said nothing.
        """
        try:
            dead = self._arrived()
            if not dead and 0 < self.connector.options.health_check_interval < idle_s:
                send(connection, PING)
                dead = self._read() != b"PONG"
        except Exception:  # noqa: BLE001 - any failure of an idle connection means the same
            dead = True
        except BaseException:
            # The reply to the PING would be taken for that of the next command.
            self._disconnect()
            raise
        if dead:
            self._disconnect()

    def forked(self) -> None:
        """Let go of the parent's connection, in a child. What ran before the hook of `forks` finds out by itself."""
        self._check_process()

    def _check_process(self) -> None:
        """Let a forked child start anew. Called before the lock is taken: the parent may have held it at the fork."""
        if self._pid != this_process.pid:
            self._after_fork()

    def _after_fork(self) -> None:
        """Let go of the parent's connection: close our descriptor of its socket, and send nothing over it."""
        inherited, what = self._connection, self._identity
        if self._closer is not None:
            self._closer.detach()
        self._reset()
        sock = _socket_of(inherited)
        if inherited is not None and sock is not None:
            descriptor = sock.detach()
            if identity(descriptor) == what:
                with suppress(OSError):
                    os.close(descriptor)
            inherited._sock = None  # noqa: SLF001 - redis-py would close the parent's

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._closer is not None:
                self._closer.detach()
            self._read, self._arrived = _not_connected, _nothing
            with suppress(Exception):
                connection.disconnect()
            if self.connector.finder is not None:
                self.connector.finder.looks.leave(self)

    def _fail(self, error: Exception) -> None:
        failed = self._connection is not None
        self._disconnect()
        self._fail_pending(error)
        if failed:
            self.on_failure()

    def _translated(self, error: Exception, call: Sequence[Argument] | bytes = b"") -> Exception:
        """Return our error for `error`, the reply to `call`: a command and its arguments, or the same packed."""
        from celery_redis_plus.connection.refused_calls import describe_refusal

        translated = translate(error, self.connector.address, describe_refusal(error, call))
        self.connector.note_refusal(translated)
        return translated

    def _fail_and_raise(self, error: BaseException) -> NoReturn:
        """Close the connection after `error`, which may be a timeout, an interrupt or a task's time limit; raise it."""
        if not isinstance(error, Exception):
            self._fail(ConnectionError(f"{self.purpose} was interrupted by {type(error).__name__}"))
            raise error
        translated = self._translated(error)
        self._fail(translated)
        if translated is error:
            raise error
        raise translated from error

    def _refuse(self, error: ResponseError, call: Sequence[Argument] | bytes = b"") -> NoReturn:
        """Raise what an error reply means; a server that is no primary any more is left, and the next call looks for another."""
        translated = self._translated(error, call)
        if isinstance(translated, WRONG_SERVER):
            self._fail(translated)
        if translated is error:
            raise error
        raise translated from error

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """Start the state that belongs to one physical connection."""

    def _read_arrived(self) -> None:
        """Read the pending replies that an idle connection has got. Raises as `connect` does where it has failed."""

    def _drain(self) -> None:
        """Read the pending replies before an orderly close; must not raise."""

    def _fail_pending(self, error: Exception) -> None:
        """Report to the callbacks of pending replies that none will come."""


def _close(connection: Connection) -> None:
    with suppress(Exception):
        connection.disconnect()


def _not_connected() -> NoReturn:
    raise RedisConnectionError("not connected")


def _nothing() -> bool:
    return False


def _socket_of(connection: Connection | None) -> Any:
    """Return redis-py's socket, which it types as never missing although `disconnect` takes it away."""
    return None if connection is None else connection._sock  # noqa: SLF001 - there is no public way
