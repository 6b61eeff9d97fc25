"""The translation of redis-py's errors, and the operating system's, into ours."""

from __future__ import annotations

import ssl
from typing import Protocol

from redis import exceptions as redis_errors

from celery_redis_plus.errors import (
    AuthenticationFailed,
    CeleryRedisPlusError,
    ClusterRedirected,
    CommandUnavailable,
    DamagedRecord,
    InvalidAddress,
    InvalidArgument,
    NoPermission,
    NotRedis,
    OptionError,
    ReadOnlyReplica,
    ServerLoading,
    ServerOutOfMemory,
    ServerTimeout,
    ServerUnavailable,
    ServerUnreachable,
    SlotUnavailable,
    TlsFailed,
    WrongKeyType,
)


class Place(Protocol):
    """What `translate` needs to know of an address: how to print it, and what never to print."""

    @property
    def password(self) -> str | None:
        """The secret that no message may hold."""

    @property
    def cluster(self) -> object | None:
        """The cluster that it names; None for another address."""

    def display(self) -> str:
        """Return the address without secrets."""


# The first match counts.
_BY_CLASS: tuple[tuple[type[Exception], type[CeleryRedisPlusError]], ...] = (
    (redis_errors.AuthenticationError, AuthenticationFailed),
    (redis_errors.AuthorizationError, AuthenticationFailed),
    (redis_errors.BusyLoadingError, ServerLoading),
    (redis_errors.ReadOnlyError, ReadOnlyReplica),
    (redis_errors.MasterDownError, ReadOnlyReplica),  # a ClusterDownError to redis-py
    (redis_errors.ClusterDownError, SlotUnavailable),
    (redis_errors.TryAgainError, SlotUnavailable),
    (redis_errors.AskError, ClusterRedirected),  # MOVED too
    (redis_errors.ClusterCrossSlotError, ClusterRedirected),
    (redis_errors.OutOfMemoryError, ServerOutOfMemory),
    (redis_errors.NoPermissionError, NoPermission),
    (redis_errors.InvalidResponse, NotRedis),
    (redis_errors.TimeoutError, ServerTimeout),
    (redis_errors.ConnectionError, ServerUnreachable),
    (TimeoutError, ServerTimeout),
    (ssl.SSLError, TlsFailed),
    (OSError, ServerUnreachable),
)

# Error codes for which redis-py (6.4 to 8.1) has no class.
_BY_CODE: dict[str, type[CeleryRedisPlusError]] = {
    "WRONGTYPE": WrongKeyType,
    "MISCONF": ServerUnavailable,
    "NOREPLICAS": ServerUnavailable,
    "BUSY": ServerUnavailable,
}

_MAX_CLIENTS = "max number of clients reached"
_MAX_CLIENTS_REMEDY = "raise the server's maxclients, or run fewer processes"
#: The replies to a command of a script that the user may not run. Their code is ERR (script.c of Valkey and Redis); Redis 7.0 has
#: the second text, which names no command.
DENIED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
#: The replies to a command of a script that has run in part: its key is on another node, or the cluster is incomplete.
#: Valkey 9 leaves out the word "Script" of Redis.
REFUSED_IN_SCRIPT = ("ttempted to access a non local key", "while the cluster is down")
#: The reply to a command that is renamed or disabled. In a script: "Unknown command called from script" (script.c of Valkey),
#: in Redis "Unknown Redis command".
UNKNOWN_COMMAND = "unknown command '"
#: What Lua says of a text that it cannot count with (lua.org/manual/5.1), and the server of one that it shall add to.
DAMAGED = ("attempt to perform arithmetic", "attempt to compare", "hash value is not an integer", "value is not an integer or")
_BY_TEXT: tuple[tuple[str, type[CeleryRedisPlusError]], ...] = (
    # A primary that becomes a replica ends the blocking commands of its clients so (blocked.c of Valkey and Redis).
    ("instance state changed (master -> replica", ReadOnlyReplica),
    ("DB index is out of range", InvalidAddress),
    ("SELECT is not allowed in cluster mode", InvalidAddress),
    # What a script meets whose slot migrates, or whose cluster has become incomplete (script.c of Valkey and Redis).
    *((text, SlotUnavailable) for text in REFUSED_IN_SCRIPT),
    *((text, NoPermission) for text in DENIED_IN_SCRIPT),
    *((text, DamagedRecord) for text in DAMAGED),
    *((text, CommandUnavailable) for text in (UNKNOWN_COMMAND, "nknown subcommand", "ommand called from script")),
)


def translate(exc: Exception, address: Place, about: str = "") -> Exception:
    """Return our error for `exc`, an error of redis-py or of the operating system met at `address`.

    `about` names the command and its keys. The result has `exc` as its `__cause__`. Our own errors, and those that these tables
    do not have (NOSCRIPT, a script's own error replies, programming errors), are returned unchanged. The password is masked, also
    in `exc`, which a traceback would print.
    """
    if isinstance(exc, CeleryRedisPlusError):
        return exc
    kind = _kind(exc)
    if kind is None:
        return exc
    if address.cluster is not None and isinstance(exc, redis_errors.AskError):
        kind = SlotUnavailable
    _mask(exc, address.password)
    detail = "no answer in time" if _timed_out_by_kernel(exc) else str(exc).strip().rstrip(".") or type(exc).__name__
    if isinstance(exc, redis_errors.AskError):
        # redis-py keeps slot and node.
        detail = f"{'MOVED' if isinstance(exc, redis_errors.MovedError) else 'ASK'} {detail}"
    if about:
        detail = f"{detail} ({about})"
    remedy = _MAX_CLIENTS_REMEDY if _MAX_CLIENTS in detail else kind.remedy
    # Without a full stop: Celery puts one behind (`Consumer` and `Blueprint` of its workers).
    translated = kind(f"{address.display()}: {detail}. What to do: {remedy}")
    translated.__cause__ = exc
    return translated


def concerns_keys(error: Exception) -> bool:
    """Return whether an error is about what is stored (a key of another type, a text for a number, a record that cannot be read).

    Others are about the server, the user, or an option. An error reply has to be translated before.
    """
    if isinstance(error, InvalidArgument):
        return not isinstance(error, (InvalidAddress, OptionError))
    return type(error) is redis_errors.ResponseError or isinstance(error, WrongKeyType | DamagedRecord)


def _kind(exc: Exception) -> type[CeleryRedisPlusError] | None:
    # redis-py packs what the operating system or OpenSSL said into an error of its own.
    if isinstance(exc, redis_errors.ConnectionError) and isinstance(exc.__context__, ssl.SSLError):
        return TlsFailed
    if _timed_out_by_kernel(exc):
        return ServerTimeout
    for known, ours in _BY_CLASS:
        if isinstance(exc, known):
            return ours
    if isinstance(exc, redis_errors.ResponseError):
        by_text = (ours for text, ours in _BY_TEXT if text in str(exc))
        return next(by_text, _BY_CODE.get(str(exc).partition(" ")[0]))
    return None


def _timed_out_by_kernel(exc: Exception) -> bool:
    """Tell whether a socket's SO_RCVTIMEO or SO_SNDTIMEO ended a call: EAGAIN, which redis-py wraps as a lost connection."""
    return isinstance(exc, redis_errors.ConnectionError) and isinstance(exc.__context__, BlockingIOError)


def _mask(exc: Exception, secret: str | None) -> None:
    """Mask `secret` in the texts of `exc`: a server that does not know AUTH echoes its arguments."""
    if secret and secret in str(exc):
        exc.args = tuple(arg.replace(secret, "***") if isinstance(arg, str) else arg for arg in exc.args)
