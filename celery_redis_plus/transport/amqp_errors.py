"""Which errors kombu and Celery treat in which way, and our broker's errors as AMQP's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from redis import exceptions as redis_errors

from celery_redis_plus import errors
from celery_redis_plus.errors import BrokerError, CeleryRedisPlusError

CONNECTION_FAMILIES = (redis_errors.ConnectionError, redis_errors.TimeoutError)
#: Celery reconnects after these; the families that kombu's redis transport names.
CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    *virtual.Transport.connection_errors,
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.AuthenticationError,
    redis_errors.BusyLoadingError,
    OSError,
    # Their families are above; some look for the very class.
    *(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CONNECTION_FAMILIES)),
)
#: These end a channel's operation, not the connection.
CHANNEL_ERRORS: tuple[type[Exception], ...] = (
    *virtual.Transport.channel_errors,
    redis_errors.DataError,
    redis_errors.InvalidResponse,
    redis_errors.ResponseError,
    BrokerError,
)

P = ParamSpec("P")
R = TypeVar("R")


class BrokerChannelError(ChannelError, CeleryRedisPlusError):
    """The broker refused an operation, as AMQP would; `code` and `reply_code` are AMQP's, `__cause__` is our own error."""


def channel_error(text: str, code: int, method: str) -> BrokerChannelError:
    """Return kombu's ChannelError with AMQP's reply code."""
    error = BrokerChannelError(text, (50, 10), method, code)
    # py-amqp has a class for each code, and code for AMQP asks either.
    error.code = code
    return error


def as_channel_error(error: BrokerError, method: str) -> BrokerChannelError:
    """Return the broker's `error` as kombu's ChannelError, which is what code for AMQP catches."""
    code: Any = getattr(error, "reply_code", 541)
    return channel_error(str(error), code, method)


def as_channel_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Raise a method's broker errors by `as_channel_error`."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BrokerError as error:
            raise as_channel_error(error, f"Channel.{method.__name__}") from error

    return wrapped


def amqp_method(method: Callable[P, R]) -> Callable[P, R]:
    """Let a channel's method work while the channel is open, and raise its broker errors by `as_channel_error`."""
    translated = as_channel_errors(method)

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        channel: Any = args[0]
        channel.check_open()
        return translated(*args, **kwargs)

    return checked
