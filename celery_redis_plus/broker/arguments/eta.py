"""When a message becomes deliverable: the headers `eta` (Celery's) and `x-delay`, as milliseconds.

Rounded up, never down: a message may be a fraction of a millisecond late, and never early.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil, inf
from typing import Any

from celery_redis_plus.errors import InvalidEta

#: Milliseconds since the epoch (November 2286): a score keeps 10^13 for the time, below the priority.
MAX_ETA_MS = 10**13 - 1
#: One priority level's span of a ready message's score, as lua/include/tag.lua has it.
PRIORITY_BAND_MS = MAX_ETA_MS + 1
#: Milliseconds, a hundred years: now + delay stays below `MAX_ETA_MS` until 2186.
MAX_DELAY_MS = 100 * 31_557_600_000

#: A publisher's own property, which is not stored: seconds from now, by the server's clock. Celery's `eta` of a countdown, which
#: goes by the publisher's, is in the headers besides.
COUNTDOWN = "celery_redis_plus.countdown"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: A digit other than 0 after the sixth of a fraction, which `datetime` cuts off.
_BELOW_MICROSECOND = re.compile(r"[.,]\d{6}\d*[1-9]")

_ALLOWED_ETA = (
    "allowed are an ISO 8601 str such as '2030-01-31T12:00:00+00:00', a datetime, or unix seconds, from 1970 to November 2286"
)
_ALLOWED_DELAY = f"allowed is a number of milliseconds from 0 to {MAX_DELAY_MS}"


def eta_of(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> int | str:
    """Return when a message becomes deliverable: ms since the epoch, or `+` and ms from now; 0 is now.

    Args:
        headers: the message's. `eta` is Celery's, `x-delay` that of RabbitMQ's delayed messages, in ms.
        properties: the publisher's own `COUNTDOWN`, or `eta`, unix seconds or a datetime, goes before them.

    Raises:
        InvalidEta: as `eta_to_ms` and `delay_to_ms`.
    """
    if COUNTDOWN in properties:
        return f"+{delay_to_ms(properties[COUNTDOWN] * 1000)}"
    own = properties.get("eta")
    eta = headers.get("eta") if own is None else own
    if eta is not None and eta != "":
        return eta_to_ms(eta, naive_is_utc=True)
    delay = headers.get("x-delay")
    return 0 if delay is None else f"+{delay_to_ms(delay)}"


def eta_to_ms(value: object, *, naive_is_utc: bool, tz: tzinfo | None = None) -> int:
    """Return Celery's `eta` as milliseconds since the epoch.

    Args:
        value: an ISO 8601 str as Celery writes it (`datetime.isoformat()`; `Z`, other offsets and none are
            read too), a datetime, or a number of unix seconds (floats are read to the microsecond, their own
            precision).
        naive_is_utc: what a time without offset means; Celery's `enable_utc`.
        tz: the zone of times without offset if they are not UTC; None is the system's.

    Returns:
        Milliseconds since the epoch, rounded up; a time that has passed is as good as now.

    Raises:
        InvalidEta: garbage, NaN, before 1970 or after November 2286; names the value and what is allowed.
    """
    eta_ms = moment_to_ms(value, naive_is_utc=naive_is_utc, tz=tz)
    if eta_ms > MAX_ETA_MS:
        raise refused(value, "is out of range")
    return eta_ms


def moment_to_ms(value: object, *, naive_is_utc: bool, tz: tzinfo | None = None) -> int:
    """Return what `eta_to_ms` does, without a last moment: `datetime.max` is one, too. Arguments and errors are its own."""
    if isinstance(value, str):
        moment_us = _parse(value, naive_is_utc, tz)
    elif isinstance(value, datetime):
        moment_us = _microseconds(value, value, naive_is_utc, tz)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # Compared first: infinities and NaN have no whole number, and every comparison with NaN fails.
        if not 0 <= value < inf:
            raise refused(value, "is out of range")
        # Beyond the year 9999 all are equally far, and a large float times a million is infinite.
        moment_us = round(min(value, 1e12) * 1_000_000)
    else:
        raise refused(value, f"is no time ({type(value).__name__})")
    moment_ms = -(-moment_us // 1000)
    if moment_ms < 0:
        raise refused(value, "is out of range")
    return moment_ms


def delay_to_ms(value: object) -> int:
    """Return the header `x-delay`, in milliseconds, as int; fractions are rounded up.

    The header is that of RabbitMQ's delayed message exchange plugin, which plain kombu users know.

    Args:
        value: an int, a finite float, or a str of digits.

    Raises:
        InvalidEta: anything else, negative, or over a hundred years; names the value and what is allowed.
    """
    delay_ms = -1
    if isinstance(value, str):
        digits = value.strip()
        # 16 digits are more than enough; int() refuses thousands with an error of its own.
        delay_ms = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 16 else -1
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY_MS:
        delay_ms = ceil(value)
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise InvalidEta(f"x-delay {value!r:.100} is no delay; {_ALLOWED_DELAY}")
    return delay_ms


def check_new_time(eta: int | str) -> None:
    """Check the time that a message shall get: milliseconds since the epoch, or `+` and milliseconds from now.

    Raises:
        InvalidEta: it is over a hundred years from now, or after November 2286; names the value and what is allowed.
    """
    if not 0 <= int(eta) <= (MAX_DELAY_MS if isinstance(eta, str) else MAX_ETA_MS):
        raise InvalidEta(
            f"the new time {eta!r:.100} is out of range; allowed are 0 to {MAX_ETA_MS} ms since the epoch, and '+0' to "
            f"'+{MAX_DELAY_MS}' ms from now (a hundred years)"
        )


def time_of_ms(ms: float) -> datetime:
    """Return milliseconds since the epoch as a time in UTC: the last one that Python knows where they are beyond it."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return _LAST if ms > 0 else _EPOCH


def _parse(text: str, naive_is_utc: bool, tz: tzinfo | None) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise refused(text, "is no ISO 8601 time") from error
    cut_off = 1 if _BELOW_MICROSECOND.search(text) else 0
    return _microseconds(text, moment, naive_is_utc, tz) + cut_off


def _microseconds(value: object, moment: datetime, naive_is_utc: bool, tz: tzinfo | None) -> int:
    """Return microseconds since the epoch in whole numbers: `timestamp()` is a float."""
    if moment.utcoffset() is None:
        zone = UTC if naive_is_utc else tz
        naive = moment.replace(tzinfo=None)
        try:
            moment = naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()
        except (OverflowError, OSError, ValueError) as error:
            # The C library's local time does not reach as far as datetime does.
            raise refused(value, "is out of range") from error
    return (moment - _EPOCH) // _MICROSECOND


def refused(value: object, what: str) -> InvalidEta:
    """Return the error for an eta."""
    return InvalidEta(f"eta {value!r:.100} {what}; {_ALLOWED_ETA}")
