"""How long a message lives: the property `expiration` and Celery's header `expires`, as the publish script takes them.

`expiration` is AMQP's, in milliseconds; it counts from when the message becomes deliverable. Celery's `expires` is a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS, MAX_ETA_MS, moment_to_ms
from celery_redis_plus.errors import InvalidEta, InvalidExpiration

#: Behind a life: it is a task's own. Its worker revokes it then, which tells those who wait for the result.
TASK = "t"

_ALLOWED = f"allowed is a whole number of milliseconds from 0 to {MAX_DELAY_MS}, as a number or as digits"


def life_of(headers: Mapping[str, Any], expiration: object) -> str:
    """Return a message's life as `message.Outgoing` has it: Celery's `expires` counts where it is a task (message protocol 2).

    Raises:
        InvalidExpiration: as `lifetime`.
    """
    expires = headers.get("expires") if "task" in headers else None
    life = lifetime(expiration, expires)
    return life + TASK if life and expires else life


def lifetime(expiration: object, expires: object) -> str:
    """Return a message's life as `message.Outgoing` has it.

    Args:
        expiration: milliseconds, as a whole number or as digits; None is for ever. (kombu's `Producer.publish(expiration=)`
            takes seconds and writes digits of milliseconds into the properties.)
        expires: a moment, as `eta_to_ms` reads it; None is never, and so is a moment that no score can keep, after November
            2286, such as `datetime.max`. Celery makes an `expiration` of it, too, which is left out then.

    Raises:
        InvalidExpiration: naming the value and what is allowed; `expires` is no moment.
    """
    moment_ms = None if expires is None or expires == "" else _moment(expires)
    moment = "" if moment_ms is None or moment_ms > MAX_ETA_MS else str(moment_ms)
    if expiration is None or expiration == "" or (moment_ms is not None and _is_as_far(expiration)):
        return moment
    return f"{moment}+{_milliseconds(expiration)}"


def _moment(expires: object) -> int:
    try:
        return moment_to_ms(expires, naive_is_utc=True)
    except InvalidEta as error:
        raise InvalidExpiration(
            f"expires {expires!r:.100} is no time; allowed are a datetime, a number of seconds from now, or in the header of a "
            "message an ISO 8601 str such as '2030-01-31T12:00:00+00:00', from 1970 on"
        ) from error


def _is_as_far(expiration: object) -> bool:
    """Return whether a time to live is longer than a queue keeps: Celery's, for an `expires` that is a hundred years away."""
    if isinstance(expiration, str):
        return expiration.isascii() and expiration.isdecimal() and float(expiration) > MAX_DELAY_MS
    return isinstance(expiration, int | float) and expiration > MAX_DELAY_MS


def _milliseconds(value: object) -> int:
    number = -1
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdecimal() and len(value) <= 16 else -1
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        number = int(value)
    if not 0 <= number <= MAX_DELAY_MS:
        raise InvalidExpiration(f"expiration {value!r:.100} is no time to live; {_ALLOWED}")
    return number
