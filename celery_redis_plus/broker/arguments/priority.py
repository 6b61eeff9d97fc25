"""Message priorities: checked, capped by the queue, and turned into the rank that a score is built from."""

from __future__ import annotations

from typing import Final

from celery_redis_plus.errors import InvalidPriority

#: AMQP's priority is one octet.
MAX_PRIORITY: Final = 255

#: Option `priority_order` -> the rank of each checked priority: the score is rank * 10^13 + ms, the lowest is taken first.
#: `high-first` is AMQP's meaning, 255 first; `low-first` is that of kombu's redis transport, 0 first.
RANKS: Final = {"high-first": range(MAX_PRIORITY, -1, -1), "low-first": range(MAX_PRIORITY + 1)}


def check_priority(value: object, max_priority: int | None = None) -> int:
    """Return a message's priority as an int from 0 to 255, at most `max_priority`.

    Args:
        value: None (0), an int, a whole float (5.0), or a str of digits ("5").
        max_priority: the queue's `x-max-priority`; higher priorities count as this one, as in RabbitMQ
            (https://www.rabbitmq.com/docs/priority#behaviour). None: no cap.

    Raises:
        InvalidPriority: no number, a bool, or out of range; names the value and what is allowed.
    """
    priority = value if type(value) is int else _number(value)
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidPriority(f"priority {value!r:.100} is out of range; {_ALLOWED}")
    return priority if max_priority is None or priority <= max_priority else max_priority


_ALLOWED = f"allowed are whole numbers from 0 to {MAX_PRIORITY}"


def _number(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        # More than 4 digits are out of range anyway; int() has its own limits beyond.
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) <= 4:
            return int(text)
    raise InvalidPriority(f"priority {value!r:.100} ({type(value).__name__}) is no whole number; {_ALLOWED}")
