"""The connection for commands: commands go out at once, replies come back in order.

Peers pay 81 µs for a `redis.Redis` object a call and 54 µs for MULTI/EXEC; a command on a persistent connection costs 11 µs, and
one sent without waiting, whose reply is read later, less than half of that (measured, see DESIGN "Speed").
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, NoScriptError, ResponseError

from celery_redis_plus.connection.pending_reply import Done, PendingReply, unread
from celery_redis_plus.connection.persistent_connection import Argument, PersistentConnection
from celery_redis_plus.connection.protocol import pack_call, pack_command, send
from celery_redis_plus.error_translation import REFUSED_IN_SCRIPT
from celery_redis_plus.errors import WRONG_SERVER, ServerUnavailable

if TYPE_CHECKING:
    from redis.connection import Connection

    from celery_redis_plus.scripts import Script

logger = logging.getLogger(__name__)

#: How often a script is sent to a server that loses its scripts.
SCRIPT_SENDS = 8


class CommandConnection(PersistentConnection):
    """A connection for commands, shared by the threads of a process, never by two processes.

    Each physical connection has a producer id of its own and counts the messages published over it: TCP keeps their order,
    which is what makes a publish idempotent (docs/design/0003-idempotent-publish.md).
    """

    def _reset(self) -> None:
        super()._reset()
        #: Whether the last failed call may have reached the server: written, no reply.
        self.outcome_unknown = False
        #: Whether a call is under way. Whatever is called then runs in a signal handler that has interrupted it, since others
        #: wait for the lock: it must neither write into that call's command nor read that call's reply.
        self._busy = False
        self._pending: deque[PendingReply] = deque()
        #: Packed commands that wait for the next write.
        self._outbox: list[bytes] = []
        self._loaded: set[bytes] = set()
        #: Why the server did not take the source of a script.
        self._source_error: Exception | None = None
        self.producer = b""
        self.sequence = 0

    def _opened(self) -> None:
        self.outcome_unknown = False
        self._loaded.clear()
        self.producer = secrets.token_hex(6).encode()
        self.sequence = 0

    def _read_arrived(self) -> None:
        try:
            while self._pending and not self._busy and self._arrived():
                self._read_one()
        except BaseException as error:
            self._fail_and_raise(error)

    def _drain(self) -> None:
        try:
            self.flush()
            self._read_pending()
        except Exception as error:
            logger.debug("closing %s: %s", self.purpose, error)

    def _fail_pending(self, error: Exception) -> None:
        self._busy = False
        pending, self._pending = self._pending, deque()
        self._outbox.clear()
        for item in pending:
            item.done(None, error)

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

    def call(self, script: Script, keys: Sequence[bytes], *arguments: Argument) -> Any:
        """Run a script and return its reply; NOSCRIPT is mended here.

        Raises:
            redis.exceptions.RedisError: as `error_translation.translate` names it. `outcome_unknown` tells whether the
                script may have run.
        """
        packed = pack_call(script.sha, keys, arguments)
        with self.exclusive():
            return self.call_packed(script, packed)

    def call_packed(self, script: Script, packed: bytes) -> Any:
        """Run a script whose call is packed already. For `exclusive` use; raises as `call` does."""
        for _ in range(SCRIPT_SENDS):
            try:
                return self._exchange(script, packed)
            except NoScriptError:
                # Not executed. Another client has flushed the scripts, perhaps between the two halves of one write.
                self._loaded.discard(script.sha)
                if self._source_error is not None:
                    raise self._source_error from None
        raise ServerUnavailable(
            f"{self.connector.address.display()}: the server lost its scripts {SCRIPT_SENDS} times in a row, each time before it "
            "ran one. Nothing was changed. What to do: stop what sends SCRIPT FLUSH."
        )

    def command(self, *arguments: Argument) -> Any:
        """Run one plain command and return its reply, bytes undecoded. Raises as `call` does."""
        self._check_process()
        packed = pack_command(arguments)
        with self.lock:
            return self._exchange(None, packed)

    def ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Send plain commands in one write; return their replies. Raises as `pipeline`, and the first error reply."""
        replies = self.pipeline(commands) if commands else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def pipeline(self, commands: Sequence[tuple[Argument, ...]], script: Script | None = None) -> list[Any]:
        """Send commands in one write; return their replies, an error reply standing in the list as an exception.

        `script` is what they call by EVALSHA, if they do: the server is given its source first, where it was not yet. Calls that
        met a server without it have a NoScriptError for a reply, and were not executed.

        Raises:
            redis.exceptions.ConnectionError: the connection failed; some of the commands may have run.
        """
        self._check_process()
        with self.lock:
            if self._busy:
                with self._aside() as aside:
                    return aside.pipeline(commands, script)
            self.outcome_unknown = False
            connection = self._open()
            try:
                self._busy = True
                packed = b"".join(map(pack_command, commands))
                if script is not None and script.sha not in self._loaded:
                    packed = self._with_source(script, packed)
                self._outbox.append(packed)
                self.outcome_unknown = True
                send(connection, self._take_outbox())
                self._read_pending()
                replies: list[Any] = []
                for command in commands:
                    try:
                        replies.append(self._read())
                    except NoScriptError as error:
                        self._loaded.clear()
                        replies.append(self._source_error or error)
                    except ResponseError as error:
                        replies.append(self._translated(error, command))
                        if isinstance(replies[-1], WRONG_SERVER):
                            self._fail_and_raise(replies[-1])
            except BaseException as error:
                self._fail_and_raise(error)
            finally:
                self._busy = False
            self.outcome_unknown = False
            return replies

    def send_nowait(
        self, script: Script, keys: Sequence[bytes], *arguments: Argument, done: Done = unread, buffered: bool = False
    ) -> None:
        """Send a script without waiting; its reply is read before the next call's, or by `read_ready`.

        With `buffered` it is kept for the next write, or for `flush`: one system call for several.

        Raises:
            redis.exceptions.ConnectionError: the connection failed; `done` has been told, too.
        """
        self.send_packed_nowait(script, pack_call(script.sha, keys, arguments), done=done, buffered=buffered)

    def send_packed_nowait(self, script: Script, packed: bytes, *, done: Done = unread, buffered: bool = False) -> None:
        """Send a script whose call is packed already. As `send_nowait`."""
        self._post(PendingReply(script, packed, done), buffered=buffered)

    def command_nowait(self, *arguments: Argument, done: Done, buffered: bool = False) -> None:
        """Send one plain command without waiting; `done` gets its reply before the next call returns. As `send_nowait`."""
        self._post(PendingReply(None, pack_command(arguments), done), buffered=buffered)

    def commands_nowait(self, commands: Sequence[tuple[Argument, ...]], done: Callable[[list[Any]], None]) -> None:
        """Send plain commands in one write without waiting. As `send_nowait`.

        `done` gets all their replies, an error standing among them as an exception; errors alone where the connection failed.
        """
        replies: list[Any] = []

        def answered(reply: Any, error: Exception | None) -> None:
            replies.append(reply if error is None else error)
            if len(replies) == len(commands):
                done(replies)

        self._post(*(PendingReply(None, pack_command(command), answered) for command in commands))

    def flush(self) -> None:
        """Send what was buffered. Raises as `call` does."""
        if self._outbox:
            with self.lock:
                if self._busy:
                    return
                connection = self._open()
                try:
                    self._busy = True
                    send(connection, self._take_outbox())
                except BaseException as error:
                    self._fail_and_raise(error)
                finally:
                    self._busy = False

    @property
    def has_pending(self) -> bool:
        """Whether replies are outstanding."""
        return bool(self._pending)

    def read_ready(self) -> None:
        """Read the pending replies that have arrived; never waits for one. Raises as `call` does when the connection failed."""
        self._check_process()
        with self.lock:
            if self._connection is None or self._busy:
                return
            try:
                self.flush()
                while self._pending and self._arrived():
                    self._read_one()
                if not self._pending and self._arrived():
                    # No reply is pending: only an end of file can be there.
                    self._read()
            except BaseException as error:
                self._fail_and_raise(error)

    def read_until(self, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for pending replies: for all, or `until` it is enough. Raises as `call` does when the connection failed."""
        self._check_process()
        with self.lock:
            try:
                self.flush()
                while self._pending and not self._busy and not until():
                    self._read_one()
            except BaseException as error:
                self._fail_and_raise(error)

    def _post(self, *posted: PendingReply, buffered: bool = False) -> None:
        """Send what the `posted` replies answer, in one write, and leave them to a later read."""
        self._check_process()
        with self.lock:
            if self._busy:
                with self._aside() as aside:
                    aside._post(*posted)  # noqa: SLF001 - of the same class
                return
            try:
                connection = self._open()
                self._busy = True
                for pending in posted:
                    script, packed = pending.script, pending.packed
                    if script is not None and script.sha not in self._loaded:
                        packed = self._with_source(script, packed)
                    self._pending.append(pending)
                    self._outbox.append(packed)
                if not buffered:
                    send(connection, self._take_outbox())
            except BaseException as error:
                for pending in posted:
                    if pending not in self._pending:
                        pending.done(None, error if isinstance(error, Exception) else ConnectionError(repr(error)))
                self._fail_and_raise(error)
            finally:
                self._busy = False

    # -- inside the lock ----------------------------------------------------------------------------------------------

    @contextmanager
    def _aside(self) -> Iterator[CommandConnection]:
        """Give a signal handler a connection of its own, since it has interrupted a call on this one."""
        aside = CommandConnection(self.connector, self.purpose, timeout=self.timeout)
        aside.on_failure = self.on_failure
        try:
            yield aside
        finally:
            # Reads the pending replies.
            aside.close()

    def _exchange(self, script: Script | None, packed: bytes) -> Any:
        if self._busy:
            with self._aside() as aside:
                return aside._exchange(script, packed)  # noqa: SLF001 - of the same class
        self.outcome_unknown = False
        connection = self._open()
        try:
            self._busy = True
            # The call itself is still needed: an error names its keys.
            written = packed
            if script is not None and script.sha not in self._loaded:
                written = self._with_source(script, packed)
            if self._outbox:
                self._outbox.append(written)
                written = self._take_outbox()
            self.outcome_unknown = True
            send(connection, written)
            if self._pending:
                self._read_pending()
            reply = self._read()
        except NoScriptError:
            self.outcome_unknown = False
            raise
        except WRONG_SERVER as error:
            # The reply to an earlier call; this one's is not read any more.
            self._fail_and_raise(error)
        except ResponseError as error:
            # A script that met keys of another node has run up to there.
            self.outcome_unknown = any(text in str(error) for text in REFUSED_IN_SCRIPT)
            self._refuse(error, packed)
        except BaseException as error:
            self._fail_and_raise(error)
        finally:
            self._busy = False
        self.outcome_unknown = False
        return reply

    def _log_in_again(self, connection: Connection) -> None:  # noqa: ARG002 - of the next write
        """Send AUTH with the next write; a refusal is logged when it is read."""
        packed = self._packed_login()
        if packed:
            self._outbox.append(packed)
            self._pending.append(PendingReply(None, b"", self._login_answered, is_login=True))

    def _login_answered(self, _: Any, error: Exception | None) -> None:
        if isinstance(error, AuthenticationError | ResponseError):
            self._note_refused_login(error)

    def _with_source(self, script: Script, packed: bytes) -> bytes:
        """Return the call of a script with its source before it.

        Scripts are not replicated and a fresh server has none: each connection brings the ones it uses, in the same write.
        """
        self._loaded.add(script.sha)
        self._source_error = None
        self._pending.append(PendingReply(None, b"", self._source_answered))
        return pack_command(("SCRIPT", "LOAD", script.source)) + packed

    def _source_answered(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._source_error = error

    def _take_outbox(self) -> bytes:
        """Return the packed commands of the next write."""
        packed = b"".join(self._outbox)
        self._outbox.clear()
        return packed

    def _read_pending(self) -> None:
        """Read what is pending now; a script that is sent again meanwhile is answered after the caller's own command."""
        for _ in range(len(self._pending)):
            self._read_one()

    def _read_one(self) -> None:
        """Read one pending reply; an error reply is its callback's business, not the caller's.

        Raises:
            ReadOnlyReplica, SlotUnavailable: the server is not the one to be asked; the caller leaves it.
        """
        within, self._busy = self._busy, True
        reply: Any = None
        failure: Exception | None = None
        try:
            reply = self._read()
        except NoScriptError:
            pending = self._pending.popleft()
            if pending.script is not None:
                # Not executed: the scripts were flushed. Their order does not matter: they are settlements.
                self._loaded.discard(pending.script.sha)
                failure = self._source_error
            if failure is None:
                if pending.script is not None:
                    # First: it may have an AUTH to send, which goes before them.
                    connection = self._open()
                    self._outbox.append(self._with_source(pending.script, pending.packed))
                    self._pending.append(pending)
                    send(connection, self._take_outbox())
                self._busy = within
                return
        except (AuthenticationError, ResponseError) as error:
            if isinstance(error, AuthenticationError) and not self._pending[0].is_login:
                raise
            pending = self._pending.popleft()
            failure = self._translated(error, pending.packed)
        else:
            pending = self._pending.popleft()
        # What it calls may post, behind the call that is under way.
        self._busy = False
        try:
            pending.done(reply, failure)
        finally:
            self._busy = within
        if isinstance(failure, WRONG_SERVER):
            raise failure
