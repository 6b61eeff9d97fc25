"""How long a message lives: the property `expiration` and Celery's header `expires`, as the publish script takes them.

`expiration` is AMQP's, in milliseconds; it counts from when the message becomes deliverable. Celery's `expires` is a moment.
"""

from __future__ import annotations

from celery_redis_plus.broker.eta import MAX_DELAY_MS, eta_to_ms
from celery_redis_plus.errors import InvalidExpiration

_ALLOWED = f"allowed is a whole number of milliseconds from 0 to {MAX_DELAY_MS}, as a number or as digits"


def lifetime(expiration: object, expires: object) -> str:
    """Return a message's life as `message.Outgoing` has it.

    Args:
        expiration: milliseconds, as a whole number or as digits; None is for ever. (kombu's `Producer.publish(expiration=)`
            takes seconds and writes digits of milliseconds into the properties.)
        expires: a moment, as `eta_to_ms` reads it; None is never.

    Raises:
        InvalidExpiration: naming the value and what is allowed.
        InvalidEta: `expires` is no moment.
    """
    moment = "" if expires is None or expires == "" else str(eta_to_ms(expires, naive_is_utc=True))
    return moment if expiration is None or expiration == "" else f"{moment}+{_milliseconds(expiration)}"


def _milliseconds(value: object) -> int:
    number = -1
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdecimal() and len(value) <= 16 else -1
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        number = int(value)
    if not 0 <= number <= MAX_DELAY_MS:
        raise InvalidExpiration(f"expiration {value!r:.100} is no time to live; {_ALLOWED}")
    return number
