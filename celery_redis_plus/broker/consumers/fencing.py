"""Fencing tokens: numbers by which a store of the application's own refuses the writes of a consumer that lost its message.

Martin Kleppmann, "How to do distributed locking" (2016): a lease alone protects nothing that its late owner writes.
"""

from __future__ import annotations

#: Bits of a token for the number of the claim, below those for the time: a positive 64-bit integer until the year 2248.
CLAIM_BITS = 20
#: Hexadecimal digits of a tag that are the time of its publish, ms since the epoch.
_TIME_DIGITS = 11


def token_at(time_ms: int, claim: int) -> int:
    """Return the token of the claim number `claim` of a message that was published at `time_ms` since the epoch."""
    return time_ms << CLAIM_BITS | min(claim, (1 << CLAIM_BITS) - 1)


def token_of(tag: str, claim: int) -> int:
    """Return the token of a delivery: it grows with each claim of the message, and messages of a later ms have greater ones."""
    return token_at(int(tag[:_TIME_DIGITS], 16), claim)
