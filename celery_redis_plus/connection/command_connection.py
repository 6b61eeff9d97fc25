"""One held server connection: commands go out at once, replies come back in order.

Peers pay 81 µs for a `redis.Redis` object a call and 54 µs for MULTI/EXEC; a command on a held connection costs 11 µs, and a
posted one, whose reply is read later, less than half of that (measured, see DESIGN "Speed").
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError

from celery_redis_plus.connection.command_encoding import pack_call, pack_command
from celery_redis_plus.connection.persistent_connection import Argument, PersistentConnection
from celery_redis_plus.connection.reply_parser import send
from celery_redis_plus.errors import ServerUnavailable

if TYPE_CHECKING:
    from celery_redis_plus.scripts import Script

logger = logging.getLogger(__name__)

#: How often a script is sent that the server does not know.
TRIES = 8

#: Called with (reply, None) or (None, error).
Done = Callable[[Any, Exception | None], None]


class _PendingReply:
    """A reply that the server owes for a posted script."""

    __slots__ = ("done", "packed", "script")

    def __init__(self, script: Script | None, packed: bytes, done: Done | None) -> None:
        self.script = script
        self.packed = packed
        self.done = done

    def settle(self, reply: Any, error: Exception | None) -> None:
        if self.done is not None:
            self.done(reply, error)


class CommandConnection(PersistentConnection):
    """A connection for commands, shared by the threads of a process, never by two processes.

    Each physical connection has a producer id of its own and counts the messages published over it: TCP keeps their order,
    which is what makes a publish idempotent (docs/design/0003-idempotent-publish.md).
    """

    def _reset(self) -> None:
        super()._reset()
        #: Whether the last failed call may have reached the server: written, no reply.
        self.in_doubt = False
        #: Whether a call is under way. Whatever is called then runs in a signal handler that has interrupted it, since others
        #: wait for the lock: it must neither write into that call's command nor read that call's reply.
        self._busy = False
        self._owed: deque[_PendingReply] = deque()
        #: Packed commands that wait for the next write.
        self._outbox: list[bytes] = []
        self._loaded: set[bytes] = set()
        #: Why the server did not take the source of a script.
        self._source_error: Exception | None = None
        self.producer = b""
        self.sequence = 0

    def _opened(self) -> None:
        self.in_doubt = False
        self._loaded.clear()
        self.producer = secrets.token_hex(6).encode()
        self.sequence = 0

    def _expects(self) -> bool:
        return bool(self._owed)

    def _finish_up(self) -> None:
        try:
            self.push()
            self._read_owed()
        except Exception as error:
            logger.debug("closing %s: %s", self.purpose, error)

    def _gave_up(self, error: Exception) -> None:
        self._busy = False
        owed, self._owed = self._owed, deque()
        self._outbox.clear()
        for item in owed:
            item.settle(None, error)

    def next_number(self) -> tuple[bytes, int]:
        """Return the connection's producer id and the next message's number; connects if need be. For `exclusive` use.

        Raises as `connect` does.
        """
        if self._busy:
            # The message goes over another connection.
            return secrets.token_hex(6).encode(), 1
        self._open()
        self.sequence += 1
        return self.producer, self.sequence

    # -- calls --------------------------------------------------------------------------------------------------------

    def run(self, script: Script, keys: Sequence[bytes], *arguments: Argument) -> Any:
        """Run a script and return its reply; NOSCRIPT is mended here.

        Raises:
            redis.exceptions.RedisError: as `translation.translate` names it. `in_doubt` tells whether the script may have run.
        """
        packed = pack_call(script.sha, keys, arguments)
        with self.exclusive():
            return self.run_packed(script, packed)

    def run_packed(self, script: Script, packed: bytes) -> Any:
        """Run a script whose call is packed already. For `exclusive` use; raises as `run` does."""
        for _ in range(TRIES):
            try:
                return self._exchange(script, packed)
            except NoScriptError:
                # Not executed. Another client has flushed the scripts, perhaps between the two halves of one write.
                self._loaded.discard(script.sha)
                if self._source_error is not None:
                    raise self._source_error from None
        raise ServerUnavailable(
            f"{self.connector.address.display()}: the server lost its scripts {TRIES} times in a row, each time before it ran "
            "one. Nothing was changed. What to do: stop what sends SCRIPT FLUSH."
        )

    def command(self, *arguments: Argument) -> Any:
        """Run one plain command and return its reply, bytes undecoded. Raises as `run` does."""
        self._check_process()
        packed = pack_command(arguments)
        with self.lock:
            return self._exchange(None, packed)

    def pipeline(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send commands in one write; return their replies, an error reply standing in the list as an exception.

        Raises:
            redis.exceptions.ConnectionError: the connection failed; some of the commands may have run.
        """
        self._check_process()
        with self.lock:
            if self._busy:
                with self._aside() as aside:
                    return aside.pipeline(commands)
            connection = self._open()
            self.in_doubt = False
            try:
                self._busy = True
                packed = self._behind_outbox(b"".join(map(pack_command, commands)))
                self.in_doubt = True
                send(connection, packed)
                self._read_owed()
                replies: list[Any] = []
                for command in commands:
                    try:
                        replies.append(self._read())
                    except ResponseError as error:
                        replies.append(self._translated(error, command))
            except BaseException as error:
                self._break(error)
            finally:
                self._busy = False
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
        self.post_packed(script, pack_call(script.sha, keys, arguments), done=done, hold=hold)

    def post_packed(self, script: Script, packed: bytes, *, done: Done | None = None, hold: bool = False) -> None:
        """Send a script whose call is packed already. As `post`."""
        self._check_process()
        owed = _PendingReply(script, packed, done)
        with self.lock:
            if self._busy:
                with self._aside() as aside:
                    aside.post_packed(script, packed, done=done)
                return
            try:
                connection = self._open()
                self._busy = True
                if script.sha not in self._loaded:
                    packed = self._with_source(script, packed)
                self._owed.append(owed)
                if hold:
                    self._outbox.append(packed)
                else:
                    send(connection, self._behind_outbox(packed))
            except BaseException as error:
                if not self._owed:
                    owed.settle(None, error if isinstance(error, Exception) else ConnectionError(repr(error)))
                self._break(error)
            finally:
                self._busy = False

    def push(self) -> None:
        """Send what was held. Raises as `run` does."""
        if self._outbox:
            with self.lock:
                if self._busy:
                    return
                connection = self._open()
                try:
                    self._busy = True
                    send(connection, self._behind_outbox(b""))
                except BaseException as error:
                    self._break(error)
                finally:
                    self._busy = False

    def ask(self, *arguments: Argument, done: Done, hold: bool = False) -> None:
        """Send one plain command without waiting; `done` gets its reply before the next call returns. Raises as `post` does.

        With `hold` it is kept for the next write, or for `push`.
        """
        self._check_process()
        with self.lock:
            if self._busy:
                with self._aside() as aside:
                    aside.ask(*arguments, done=done)
                return
            try:
                connection = self._open()
                self._busy = True
                packed = pack_command(arguments)
                self._owed.append(_PendingReply(None, packed, done))
                if hold:
                    self._outbox.append(packed)
                else:
                    send(connection, self._behind_outbox(packed))
            except BaseException as error:
                self._break(error)
            finally:
                self._busy = False

    @property
    def owes(self) -> bool:
        """Whether replies to posted scripts are outstanding."""
        return bool(self._owed)

    def collect(self) -> None:
        """Read the owed replies that have arrived; never waits for one. Raises as `run` does when the connection failed."""
        self._check_process()
        with self.lock:
            if self._connection is None or self._busy:
                return
            try:
                self.push()
                while self._owed and self._arrived():
                    self._read_one()
                if not self._owed and self._arrived():
                    # Nothing is owed: only an end of file can be there.
                    self._read()
            except BaseException as error:
                self._break(error)

    def catch_up(self, until: Callable[[], bool] = lambda: False) -> None:
        """Read owed replies, waiting for them: all, or `until` it is enough. Raises as `run` does when the connection failed."""
        self._check_process()
        with self.lock:
            try:
                self.push()
                while self._owed and not self._busy and not until():
                    self._read_one()
            except BaseException as error:
                self._break(error)

    # -- inside the lock ----------------------------------------------------------------------------------------------

    @contextmanager
    def _aside(self) -> Iterator[CommandConnection]:
        """Give a signal handler a connection of its own, since it has interrupted a call on this one."""
        aside = CommandConnection(self.connector, self.purpose, timeout=self.timeout)
        try:
            yield aside
        finally:
            # Reads what is owed.
            aside.close()

    def _exchange(self, script: Script | None, packed: bytes) -> Any:
        if self._busy:
            with self._aside() as aside:
                return aside._exchange(script, packed)  # noqa: SLF001 - of the same class
        connection = self._open()
        self.in_doubt = False
        try:
            self._busy = True
            if script is not None and script.sha not in self._loaded:
                packed = self._with_source(script, packed)
            if self._outbox:
                packed = self._behind_outbox(packed)
            self.in_doubt = True
            send(connection, packed)
            if self._owed:
                self._read_owed()
            reply = self._read()
        except NoScriptError:
            self.in_doubt = False
            raise
        except ResponseError as error:
            self.in_doubt = False
            raise self._translated(error, packed) from error
        except BaseException as error:
            self._break(error)
        finally:
            self._busy = False
        self.in_doubt = False
        return reply

    def _with_source(self, script: Script, packed: bytes) -> bytes:
        """Return the call of a script with its source before it.

        Scripts are not replicated and a fresh server has none: each connection brings the ones it uses, in the same write.
        """
        self._loaded.add(script.sha)
        self._source_error = None
        self._owed.append(_PendingReply(None, b"", self._source_answered))
        return pack_command(("SCRIPT", "LOAD", script.source)) + packed

    def _source_answered(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._source_error = error

    def _behind_outbox(self, packed: bytes) -> bytes:
        """Return packed commands behind those that wait for the next write."""
        packed = b"".join((*self._outbox, packed))
        self._outbox.clear()
        return packed

    def _read_owed(self) -> None:
        """Read what is owed now; a script that is sent again meanwhile is answered after the caller's own command."""
        for _ in range(len(self._owed)):
            self._read_one()

    def _read_one(self) -> None:
        """Read one owed reply; an error reply is its callback's business, not the caller's."""
        within, self._busy = self._busy, True
        reply: Any = None
        failure: Exception | None = None
        try:
            reply = self._read()
        except NoScriptError:
            owed = self._owed.popleft()
            if owed.script is not None:
                # Not executed: the scripts were flushed. The order among posted scripts does not matter, they are settlements.
                self._loaded.discard(owed.script.sha)
                failure = self._source_error
            if failure is None:
                if owed.script is not None:
                    packed = self._with_source(owed.script, owed.packed)
                    self._owed.append(owed)
                    send(self._open(), self._behind_outbox(packed))
                self._busy = within
                return
        except ResponseError as error:
            owed = self._owed.popleft()
            failure = self._translated(error, owed.packed)
        else:
            owed = self._owed.popleft()
        # What it calls may post, behind the call that is under way.
        self._busy = False
        try:
            owed.settle(reply, failure)
        finally:
            self._busy = within
