"""Reads replies from a persistent connection, with the parser of redis-py that is in use: hiredis, or the one in Python.

redis-py's own way to a reply leads through three functions that look after protocols, encodings and timeouts which we do not
use; the short way costs a publish 2.2 of 49 µs less (docs/design/0002-claim-and-wait.md).

Its `can_read` is of no use here. With the parser in Python it reads from the socket, closes the connection when that fails, and
opens another one when it is called again: the state that belongs to one physical connection would go with nobody noticing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus.connection.unpatched import is_readable

if TYPE_CHECKING:
    from redis.connection import Connection

#: Types of complete replies, errors aside.
COMPLETE_TYPES = frozenset({bytes, list, int, type(None)})

#: Errors of a parser or socket that was closed during its use, or that two greenlets use at once.
#: Interrupts and time limits (`SoftTimeLimitExceeded` is an Exception) are none of them.
PARSER_ERRORS = (AssertionError, AttributeError, BufferError, EOFError, LookupError, RuntimeError, TypeError, ValueError)


class Replies(NamedTuple):
    """How to get the replies of one connection, until it is closed."""

    #: Returns the next reply. Raises an error reply, or redis-py's ConnectionError or TimeoutError.
    read: Callable[[], Any]
    #: Tells whether `read` has something at hand: a reply or a part of it, or the end of the connection.
    arrived: Callable[[], bool]


def replies_of(connection: Connection) -> Replies:
    """Return the replies of `connection`, which is set up and has nothing unread."""
    parser: Any = connection._parser  # noqa: SLF001 - there is no public way
    sock: Any = connection._sock  # noqa: SLF001 - as above
    reader, buffer = getattr(parser, "_reader", None), getattr(parser, "_buffer", None)
    slow = _guarded(functools.partial(connection.read_response, disable_decoding=True))
    if reader is None:
        return Replies(slow, functools.partial(_arrived, sock, lambda: buffer is None or buffer.unread_bytes()))
    arrived = functools.partial(_arrived, sock, reader.has_data)
    if isinstance(buffer, bytearray):
        return Replies(_quick(sock, reader, buffer, slow), arrived)
    return Replies(slow, arrived)


def send(connection: Connection, packed: bytes) -> None:
    """Send packed commands over a connection that is open. Raises redis-py's ConnectionError or TimeoutError."""
    sock: Any = connection._sock  # noqa: SLF001 - as above
    if sock is None:
        # redis-py would open another connection, with none of the state that this one's user counts on.
        raise RedisConnectionError("Connection closed.")
    try:
        connection.send_packed_command((packed,), check_health=False)
    except PARSER_ERRORS as error:
        raise RedisConnectionError(f"Error while writing to socket: {error!r}") from error


def _guarded(read: Callable[[], Any]) -> Callable[[], Any]:
    def guarded() -> Any:
        try:
            return read()
        except PARSER_ERRORS as error:
            raise RedisConnectionError(f"Error while reading from socket: {error!r}") from error

    return guarded


def _arrived(sock: Any, unread: Callable[[], Any]) -> bool:
    try:
        # TLS has a buffer of its own.
        return bool(unread() or (hasattr(sock, "pending") and sock.pending()) or is_readable(sock.fileno()))
    except (OSError, *PARSER_ERRORS):
        # Closed: a read will tell.
        return True


def _quick(sock: Any, reader: Any, buffer: bytearray, slow: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that reads from the socket into hiredis."""
    receive = sock.recv_into

    def read() -> Any:
        if not reader.has_data():
            try:
                size = receive(buffer)
            except TimeoutError as error:
                raise RedisTimeoutError("Timeout reading from socket") from error
            except (OSError, *PARSER_ERRORS) as error:
                raise RedisConnectionError(f"Error while reading from socket: {error.args}") from error
            if size == 0:
                raise RedisConnectionError("Connection closed by server.")
            reader.feed(buffer, 0, size)
        reply = reader.gets(False)
        if type(reply) in COMPLETE_TYPES:
            return reply
        if isinstance(reply, Exception):
            raise reply
        # The rest of it is still under way.
        return slow()

    return read
