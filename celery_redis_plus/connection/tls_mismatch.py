"""Tells whether a connection failed because one side speaks TLS and the other one does not.

Neither side says so. A server without TLS waits for the end of what it takes for a command; a server with TLS closes the
connection, or answers with an alert. So the port is asked once more, in the other way.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_redis_plus.errors import ServerTimeout, ServerUnreachable, TlsFailed

if TYPE_CHECKING:
    from celery_redis_plus.connection.address import Address

#: Seconds for each answer to the question.
ANSWER_S = 1.0
#: First bytes of the records that answer a greeting: an alert, if the server refuses it, and a handshake.
#: Source: RFC 8446, section 5.1.
TLS_RECORDS = {b"\x15", b"\x16"}


def mismatch(error: Exception, address: Address) -> TlsFailed | None:
    """Return a clearer error than `error`, which ended an attempt to connect to `address`; None where TLS is not the reason.

    Takes two connections' time at most: 2 s where the server is silent.
    """
    found = None
    if address.path is None and not isinstance(_root(error), socket.gaierror | ssl.SSLCertVerificationError):
        # The server may be gone by now, and closes such a connection as it likes.
        with suppress(OSError):
            if address.tls is None and not isinstance(error, ServerTimeout) and _speaks_tls(address):
                found = (
                    "the port speaks TLS. What to do: begin broker_url with redispluss instead of redisplus; where only the "
                    "Sentinels speak TLS, set sentinel_kwargs={'ssl': True}"
                )
            elif address.tls is not None and isinstance(error, ServerTimeout | ServerUnreachable) and _speaks_plainly(address):
                found = (
                    "the port does not speak TLS. What to do: begin broker_url with redisplus instead of redispluss, without the "
                    "option ssl (for Sentinels also in sentinel_kwargs), or give the server's TLS port"
                )
    return TlsFailed(f"{address.display()}: {found}") if found else None


def _root(error: BaseException) -> BaseException:
    """Return the first error of those that led to `error`."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _connected(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=ANSWER_S)


def _speaks_plainly(address: Address) -> bool:
    """Return whether the port answers PING: with PONG, or with an error that asks for a password."""
    with _connected(address) as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(1) in {b"+", b"-"}


def _speaks_tls(address: Address) -> bool:
    """Return whether the port answers a TLS greeting with a record of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent afterwards: it does not matter who answers.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Not `wrap_socket`: it leaves its socket open where the peer resets the connection (CPython 3.11 to 3.14).
    greeting = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), greeting, server_hostname=address.host).do_handshake()
    with _connected(address) as sock:
        sock.sendall(greeting.read())
        return sock.recv(1) in TLS_RECORDS
