"""Packs and sends commands in RESP, and reads replies, by hiredis where it can be imported, else by redis-py's parser in Python.

redis-py's own call into hiredis looks at every argument twice in Python first, which costs three times the packing (13 against
4 µs for a publish); our commands hold only bytes, str, int and float. Its way to a reply leads through three functions
for protocols, encodings and timeouts which we do not use; the short way costs a publish 2.2 of 49 µs less
(docs/design/0002-claim-and-wait.md).

Its `can_read` is of no use here. With the parser in Python it reads from the socket, closes the connection when that fails, and
opens another one when it is called again: the state that belongs to one physical connection would be lost unnoticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus.connection.unpatched import is_readable

if TYPE_CHECKING:
    from redis.connection import Connection

Pack = Callable[[tuple[Any, ...]], bytes]
#: Types of arguments that hiredis packs as they are.
TEXTS = (bytes, str)


def pack_in_python(arguments: tuple[Any, ...]) -> bytes:
    """Return a command as one RESP array of bulk strings (https://redis.io/docs/latest/develop/reference/protocol-spec/)."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        value = argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")
        parts += (b"$%d\r\n" % len(value), value, b"\r\n")
    return b"".join(parts)


def _best() -> Pack:
    try:
        from hiredis import pack_command
    except ImportError:
        return pack_in_python

    def pack(arguments: tuple[Any, ...]) -> bytes:
        # Asked for the text of a number, hiredis 3.5 does not see that a signal's handler has raised meanwhile, and ends the
        # process (https://github.com/redis/hiredis-py/blob/master/src/pack.c, PyObject_Repr).
        texts: tuple[Any, ...] = tuple([one if isinstance(one, TEXTS) else repr(one) for one in arguments])
        packed: bytes = pack_command(texts)
        return packed

    return pack


#: Returns a command, given as a tuple of bytes, str, int and float, as one RESP array.
pack_command = _best()


def unpack(packed: bytes) -> list[bytes]:
    """Return the arguments of the first command in `packed`."""
    number, _, rest = packed[1:].partition(b"\r\n")
    arguments: list[bytes] = []
    for _ in range(int(number)):
        size, _, rest = rest[1:].partition(b"\r\n")
        arguments.append(rest[: int(size)])
        rest = rest[int(size) + 2 :]
    return arguments


def pack_call(sha: bytes, keys: Sequence[bytes], arguments: Sequence[Any]) -> bytes:
    """Return the packed call of a script."""
    call = (b"EVALSHA", sha, len(keys), *keys, *arguments)
    try:
        return pack_command(call)
    except UnicodeEncodeError:
        # A name whose bytes are no UTF-8 (`keys.encode_name`), which hiredis refuses.
        return pack_in_python(call)


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
        parser.parse_error = _as_replies(parser.parse_error)
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


class _LoginRefusedError(ResponseError):
    """An AuthenticationError on its way through redis-py's parser in Python, which takes that for the end of the connection."""

    def __init__(self, error: AuthenticationError) -> None:
        super().__init__(str(error))
        self.error = error


def _as_replies(parse_error: Callable[[str], Exception]) -> Callable[[str], Exception]:
    def parse(response: str) -> Exception:
        error = parse_error(response)
        return _LoginRefusedError(error) if isinstance(error, AuthenticationError) else error

    return parse


def _guarded(read: Callable[[], Any]) -> Callable[[], Any]:
    def guarded() -> Any:
        try:
            return read()
        except _LoginRefusedError as refused:
            raise refused.error from None
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
