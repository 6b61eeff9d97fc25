"""The ids of queues: a number that the server counts, in base 36, and random digits behind it.

The id stands in the tags of a queue's messages, and is the version of what processes have read of its record. The server may lose
its counter (FLUSHALL, a restart without persistence), or go back to an older one (a snapshot, a failover): then the same numbers
come again, and the random digits tell the ids apart. Behind an `R` follows how often the queue's arguments were changed since
(`lua/include/queue_id.lua`).
"""

from __future__ import annotations

import secrets

#: How many of an id's last digits are random.
RANDOM_DIGITS = 5
#: Stands before the number of a queue's changes.
REVISION = b"R"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_id(number: int) -> str:
    """Return a new id with this number, which is >= 0."""
    return _base36(number) + "".join(secrets.choice(_DIGITS) for _ in range(RANDOM_DIGITS))


def number_of(queue_id: bytes) -> int:
    """Return the number in an id; 0 where there is none."""
    try:
        return int(base_of(queue_id)[:-RANDOM_DIGITS], 36)
    except ValueError:
        return 0


def base_of(queue_id: bytes) -> bytes:
    """Return an id as it was when the queue was declared."""
    return queue_id.partition(REVISION)[0]


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits
