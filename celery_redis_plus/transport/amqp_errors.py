"""Which errors kombu and Celery treat in which way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kombu.transport import virtual
from redis import exceptions as redis_errors

from celery_redis_plus import errors
from celery_redis_plus.errors import BrokerError

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


def amqp_method(method: Callable[P, R]) -> Callable[P, R]:
    """Let a channel's method work while the channel is open."""

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        channel: Any = args[0]
        channel.check_open()
        return method(*args, **kwargs)

    return checked
