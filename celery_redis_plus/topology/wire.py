"""One held server connection: commands go out at once, replies come back in order.

Peers pay 81 µs for a `redis.Redis` object a call and 54 µs for MULTI/EXEC; a command on a held connection costs 11 µs, and a
posted one, whose reply is read later, less than half of that (measured, see DESIGN "Speed").
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import NoScriptError, ResponseError

from celery_redis_plus.errors import ServerUnreachable, translate
from celery_redis_plus.topology.packing import pack_command

if TYPE_CHECKING:
    from redis.connection import Connection

    from celery_redis_plus.scripts import Script
    from celery_redis_plus.topology.connector import Connector

logger = logging.getLogger(__name__)

#: Seconds of rest after which a connection is looked at before it is used again.
IDLE_CHECK_S = 2.0

#: What a script or a command takes as one argument.
Argument = bytes | str | int | float
#: Called with (reply, None) or (None, error).
Done = Callable[[Any, Exception | None], None]


class _Owed:
    """A reply that the server owes for a posted script."""

    __slots__ = ("arguments", "done", "script")

    def __init__(self, script: Script | None, arguments: tuple[Argument, ...], done: Done | None) -> None:
        self.script = script
        self.arguments = arguments
        self.done = done

    def settle(self, reply: Any, error: Exception | None) -> None:
        if self.done is not None:
            self.done(reply, error)


class Wire:
    """A connection for commands, shared by the threads of a process, never by two processes.

    Each physical connection has a producer id of its own and counts the messages published over it: TCP keeps their order,
    which is what makes a publish idempotent (docs/design/0003-idempotent-publish.md).
    """

    def __init__(self, connector: Connector, purpose: str, *, timeout: float | None) -> None:
        """Prepare a connection named `purpose`; `timeout` bounds each read and write, in seconds."""
        self.connector = connector
        self.purpose = purpose
        self.timeout = timeout
        #: Whether the last failed call may have reached the server: written, no reply.
        self.in_doubt = False
        #: Called when an open connection failed; a close in order, or of an idle connection, does not count.
        self.on_failure: Callable[[], None] = lambda: None
        self._reset()

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._owed: deque[_Owed] = deque()
        #: Packed commands that wait for the next write.
        self._outbox: list[bytes] = []
        self._loaded: set[bytes] = set()
        self._used = 0.0
        #: Counts the connections that were opened: two sockets may have the same file descriptor, one after the other.
        self.generation = 0
        self.producer = b""
        self.sequence = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a connection of this process that has not failed."""
        return self._connection is not None and self._pid == os.getpid()

    @property
    def connection(self) -> Connection | None:
        """The redis-py connection; Celery bounds its socket when the peer went silent."""
        return self._connection

    def fileno(self) -> int:
        """Return the socket's file descriptor; ValueError without a connection."""
        connection = self._connection
        if connection is None or connection._sock is None:
            raise ValueError(f"{self.purpose} is not connected")
        return int(connection._sock.fileno())

    def connect(self) -> None:
        """Open the connection if it is not open.

        Raises:
            redis.exceptions.ConnectionError: and its kin from `errors`; what the server said, and what to do.
        """
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            self._open()

    def _open(self) -> Connection:
        now = time.monotonic()
        idle_s = now - self._used
        if self._connection is not None and idle_s > IDLE_CHECK_S and not self._owed:
            self._drop_if_dead(self._connection, idle_s)
        self._used = now
        if self._connection is None:
            self.in_doubt = False
            self._connection = self.connector.open(self.purpose, timeout=self.timeout)
            self.generation += 1
            self._loaded.clear()
            self.producer = secrets.token_hex(6).encode()
            self.sequence = 0
        return self._connection

    def _drop_if_dead(self, connection: Connection, idle_s: float) -> None:
        """Notice that an idle connection is gone before a command is written to it: then nobody has to doubt its outcome.

        An end of file tells of a server or a firewall that closed it; after `health_check_interval` a PING finds those that
        said nothing.
        """
        try:
            dead = connection.can_read(timeout=0)
            if not dead and 0 < self.connector.options.health_check_interval < idle_s:
                connection.send_command("PING", check_health=False)
                dead = connection.read_response(disable_decoding=True) != b"PONG"
        except Exception:  # noqa: BLE001 - any failure of an idle connection means the same
            dead = True
        if dead:
            with suppress(Exception):
                connection.disconnect()
            self._connection = None

    def _after_fork(self) -> None:
        """Let go of the parent's connection: close our descriptor of its socket, and send nothing over it."""
        inherited = self._connection
        self._reset()
        if inherited is not None and inherited._sock is not None:
            with suppress(OSError):
                os.close(inherited._sock.detach())
            inherited._sock = None

    def close(self) -> None:
        """Read what is owed, then close. Never raises: what was not confirmed is reported to its callbacks."""
        if self._pid != os.getpid():
            self._after_fork()
            return
        with self.lock:
            if self._connection is None:
                return
            try:
                self.push()
                self._read_owed()
            except Exception as error:  # noqa: BLE001 - the callbacks have been told; a close goes on
                logger.debug("closing %s: %s", self.purpose, error)
            if self._connection is not None:
                self._connection.disconnect()
                self._connection = None

    def abandon(self, error: Exception | None = None) -> None:
        """Drop the connection without reading anything, as after a failure."""
        if self._pid != os.getpid():
            self._after_fork()
            return
        with self.lock:
            self._fail(error or ConnectionError(f"{self.purpose} was abandoned"))

    def _fail(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        owed, self._owed = self._owed, deque()
        self._outbox.clear()
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()
        for item in owed:
            item.settle(None, error)
        if connection is not None:
            self.on_failure()

    def next_number(self) -> tuple[bytes, int]:
        """Return the connection's producer id and the next message's number; connects if need be. Hold the lock.

        Raises as `connect` does.
        """
        if self._pid != os.getpid():
            self._after_fork()
        self._open()
        self.sequence += 1
        return self.producer, self.sequence

    # -- calls --------------------------------------------------------------------------------------------------------

    def run(self, script: Script, keys: Sequence[bytes], *arguments: Argument) -> Any:
        """Run a script and return its reply; NOSCRIPT is mended here.

        Raises:
            redis.exceptions.RedisError: as `errors.translate` names it. `in_doubt` tells whether the script may have run.
        """
        if self._pid != os.getpid():
            self._after_fork()
        call = (b"EVALSHA", script.sha, len(keys), *keys, *arguments)
        with self.lock:
            try:
                return self._exchange(script, call)
            except NoScriptError:
                self._loaded.discard(script.sha)
                return self._exchange(script, call)

    def command(self, *arguments: Argument) -> Any:
        """Run one plain command and return its reply, bytes undecoded. Raises as `run` does."""
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            return self._exchange(None, arguments)

    def pipeline(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send commands in one write; return their replies, an error reply standing in the list as an exception.

        Raises:
            redis.exceptions.ConnectionError: the connection failed; some of the commands may have run.
        """
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            connection = self._open()
            self.in_doubt = False
            try:
                packed = b"".join(map(pack_command, commands))
                self.in_doubt = True
                self._write(connection, packed)
                self._read_owed()
                replies: list[Any] = []
                for _ in commands:
                    try:
                        replies.append(connection.read_response(disable_decoding=True))
                    except ResponseError as error:
                        replies.append(self._translated(error))
            except BaseException as error:
                self._break(error)
            self.in_doubt = False
            return replies

    def post(
        self, script: Script, keys: Sequence[bytes], *arguments: Argument, done: Done | None = None, hold: bool = False
    ) -> None:
        """Send a script without waiting; its reply is read before the next call's, or by `collect`.

        With `hold` it is kept for the next write, or for `push`: one system call for several.

        Raises:
            redis.exceptions.ConnectionError: the connection failed; `done` has been told, too.
        """
        if self._pid != os.getpid():
            self._after_fork()
        call = (b"EVALSHA", script.sha, len(keys), *keys, *arguments)
        owed = _Owed(script, call, done)
        with self.lock:
            try:
                connection = self._open()
                self._owed.append(owed)
                self._send(connection, script, call, hold=hold)
            except BaseException as error:
                if not self._owed:
                    owed.settle(None, error if isinstance(error, Exception) else ConnectionError(repr(error)))
                self._break(error)

    def push(self) -> None:
        """Send what was held. Raises as `run` does."""
        if self._outbox:
            with self.lock:
                connection = self._open()
                try:
                    self._write(connection, b"")
                except BaseException as error:
                    self._break(error)

    def ask(self, *arguments: Argument, done: Done) -> None:
        """Send one plain command without waiting; `done` gets its reply before the next call returns. Raises as `post` does."""
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            try:
                connection = self._open()
                self._owed.append(_Owed(None, (), done))
                self._write(connection, pack_command(arguments))
            except BaseException as error:
                self._break(error)

    def start(self, *arguments: Argument) -> None:
        """Send a blocking command; `finish` reads its reply. Nothing else may use this wire meanwhile. Raises as `run` does."""
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            connection = self._open()
            try:
                self._write(connection, pack_command(arguments))
            except BaseException as error:
                self._break(error)

    def arrived(self) -> bool:
        """Tell, without waiting, whether `finish` has something to read: a reply, or the end of the connection."""
        connection = self._connection
        if connection is None:
            return True
        try:
            return bool(connection.can_read(timeout=0))
        except Exception:  # noqa: BLE001 - `finish` meets the same error and names it
            return True

    def finish(self) -> Any:
        """Return the reply to what `start` sent, waiting for it if need be. Raises as `run` does."""
        with self.lock:
            if self._connection is None:
                raise ServerUnreachable(f"{self.purpose}: the connection was lost while a command waited")
            try:
                return self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                raise self._translated(error) from error
            except BaseException as error:
                self._break(error)

    def load(self, script: Script) -> None:
        """Make `script` known to the server for use in a `pipeline`. Raises as `run` does."""
        with self.lock:
            if self._connection is None or script.sha not in self._loaded:
                self.command("SCRIPT", "LOAD", script.source)
                self._loaded.add(script.sha)

    @property
    def owes(self) -> bool:
        """Whether replies to posted scripts are outstanding."""
        return bool(self._owed)

    def collect(self) -> None:
        """Read the owed replies that have arrived; never waits for one. Raises as `run` does when the connection failed."""
        if self._pid != os.getpid():
            self._after_fork()
        with self.lock:
            connection = self._connection
            if connection is None:
                return
            try:
                self.push()
                while self._owed and connection.can_read(timeout=0):
                    self._read_one(connection)
                if not self._owed and connection.can_read(timeout=0):
                    # Nothing is owed: only an end of file can be there.
                    connection.read_response(disable_decoding=True)
            except BaseException as error:
                self._break(error)

    # -- inside the lock ----------------------------------------------------------------------------------------------

    def _exchange(self, script: Script | None, call: tuple[Argument, ...]) -> Any:
        connection = self._open()
        self.in_doubt = False
        try:
            if script is None:
                packed = pack_command(call)
                self.in_doubt = True
                self._write(connection, packed)
            else:
                self._send(connection, script, call)
            if self._owed:
                self._read_owed()
            reply = connection.read_response(disable_decoding=True)
        except NoScriptError:
            self.in_doubt = False
            raise
        except ResponseError as error:
            self.in_doubt = False
            raise self._translated(error) from error
        except BaseException as error:
            self._break(error)
        self.in_doubt = False
        return reply

    def _send(self, connection: Connection, script: Script, call: tuple[Argument, ...], *, hold: bool = False) -> None:
        packed = pack_command(call)
        if script.sha not in self._loaded:
            # Scripts are not replicated and a fresh server has none: each connection brings the ones it uses, in the same write.
            self._loaded.add(script.sha)
            packed = pack_command(("SCRIPT", "LOAD", script.source)) + packed
            load = _Owed(None, (), None)
            if self._owed and self._owed[-1].arguments is call:
                self._owed.insert(len(self._owed) - 1, load)
            else:
                self._owed.append(load)
        if hold:
            self._outbox.append(packed)
            return
        self.in_doubt = True
        self._write(connection, packed)

    def _write(self, connection: Connection, packed: bytes) -> None:
        if self._outbox:
            packed = b"".join((*self._outbox, packed))
            self._outbox.clear()
        connection.send_packed_command((packed,), check_health=False)

    def _read_owed(self) -> None:
        """Read what is owed now; a script that is sent again meanwhile is answered after the caller's own command."""
        connection = self._open()
        for _ in range(len(self._owed)):
            self._read_one(connection)

    def _read_one(self, connection: Connection) -> None:
        """Read one owed reply; an error reply is its callback's business, not the caller's."""
        try:
            reply = connection.read_response(disable_decoding=True)
        except NoScriptError:
            owed = self._owed.popleft()
            if owed.script is not None:
                # Not executed: the scripts were flushed. The order among posted scripts does not matter, they are settlements.
                self._loaded.discard(owed.script.sha)
                self._owed.append(owed)
                self._send(connection, owed.script, owed.arguments)
            return
        except ResponseError as error:
            self._owed.popleft().settle(None, self._translated(error))
            return
        self._owed.popleft().settle(reply, None)

    def _translated(self, error: Exception) -> Exception:
        return translate(error, self.connector.address)

    def _break(self, error: BaseException) -> NoReturn:
        """Give the connection up after `error`, which may be a timeout, an interrupt or a task's time limit; raise it."""
        if not isinstance(error, Exception):
            self._fail(ConnectionError(f"{self.purpose} was interrupted by {type(error).__name__}"))
            raise error
        translated = self._translated(error)
        self._fail(translated)
        raise translated from error
