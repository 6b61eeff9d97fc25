"""What a message says of its limiter: the header `x-limiter`, such as `stripe:100/s burst=20 cost=3 key=c7`.

Scripts read it from the stored message (`lua/include/limiters.lua`), which has the same rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from celery_redis_plus.errors import InvalidArgument

#: The header. The first word is the limiter's name, with a colon; `key=` is the last, and may have any characters.
LIMITER: Final = "x-limiter"
#: Milliseconds of the units of Celery's `rate_limit`.
_UNITS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000}
#: The part of a second whose tokens a bucket holds at once, unless its rule has a `burst`: as `x-rate-limit`.
BURST_SHARE: Final = 10
#: Messages that a window may let through: each is remembered for its length.
MOST_IN_WINDOW: Final = 10_000
#: The highest burst, concurrency and cost.
MOST: Final = 1_000_000
LONGEST_NAME: Final = 64
#: Bytes of UTF-8.
LONGEST_KEY: Final = 256

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_NAME}}}")
_RATE = re.compile(r"(\d+(?:\.\d+)?)/([smh])")
_NUMBER = re.compile(r"(burst|concurrency|cost)=(\d+(?:\.\d+)?)")
#: What is allowed, for errors.
RULES: Final = "'100/s burst=20' (token bucket), '100/m window' (sliding window) or 'concurrency=4', with the units s, m and h"
ALLOWED: Final = f"allowed is a name of {LONGEST_NAME} letters, digits, '.', '_' and '-', a colon, and a rule: {RULES}"


@dataclass(frozen=True, slots=True)
class LimiterRule:
    """How much a limiter lets through: one of a rate and a concurrency.

    Attributes:
        number: messages, or their costs, in each `unit`; 0 with `concurrency`.
        unit: `s`, `m` or `h`; '' with `concurrency`.
        burst: how many tokens the bucket holds; None: those of a tenth of a second, and one at least.
        window: whether no window of one `unit` has more than `number`, in place of a bucket.
        concurrency: how many messages may be in work.
    """

    number: float = 0
    unit: str = ""
    burst: float | None = None
    window: bool = False
    concurrency: int | None = None

    @classmethod
    def parse(cls, text: object) -> LimiterRule:
        """Return the rule in a text.

        Raises:
            InvalidArgument: it is none, or has a number out of range.
        """
        rule, cost = _read(str(text), text)
        if cost is not None:
            raise InvalidArgument(f"rule {text!r:.100} of a limiter has 'cost', which messages have; allowed is {RULES}")
        return rule

    @property
    def shape(self) -> str:
        """`bucket`, `window` or `concurrency`."""
        if self.concurrency is not None:
            return "concurrency"
        return "window" if self.window else "bucket"

    @property
    def capacity(self) -> float:
        """How much passes at once, after a rest."""
        if self.concurrency is not None:
            return self.concurrency
        if self.window:
            return self.number
        return self.burst if self.burst is not None else max(1.0, self.number / _UNITS[self.unit] * 1000 / BURST_SHARE)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.concurrency is not None:
            return f"concurrency={self.concurrency}"
        words = [f"{_text(self.number)}/{self.unit}"]
        if self.window:
            words.append("window")
        if self.burst is not None:
            words.append(f"burst={_text(self.burst)}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Limiter:
    """A limiter as a message names it.

    Attributes:
        name: of the limiter; all messages that name it share it.
        rule: how much it lets through.
        key: each key is limited by itself; None: one for all.
        cost: how many tokens the message takes.
    """

    name: str
    rule: LimiterRule
    key: str | None = None
    cost: float = 1

    @classmethod
    def parse(cls, text: object) -> Limiter:
        """Return the limiter in a header.

        Raises:
            InvalidArgument: it names none, or has a number out of range.
        """
        name, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon or not _NAME.fullmatch(name):
            raise InvalidArgument(f"{LIMITER!r} of a message is {text!r:.100}; {ALLOWED}")
        words, said, key = rest.partition(" key=")
        rule, cost = _read(words, text)
        return cls(name, rule, _key(key) if said else None).costing(1 if cost is None else cost)

    @property
    def id(self) -> str:
        """What is limited together: the name, and behind a colon the key."""
        return self.name if self.key is None else f"{self.name}:{self.key}"

    def costing(self, cost: object) -> Limiter:
        """Return this limiter for a message of that cost.

        Raises:
            InvalidArgument: it is no number over 0, more than the bucket ever has, or the rule is none of a bucket.
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost <= MOST:
            raise InvalidArgument(f"cost {cost!r:.100} of limiter {self.name!r}; allowed is a number over 0, up to {MOST:,}")
        if cost != 1 and self.rule.shape != "bucket":
            raise InvalidArgument(f"cost {cost!r} of limiter {self.name!r}, of {self.rule}; allowed is 1, or a token bucket")
        if cost > self.rule.capacity:
            raise InvalidArgument(
                f"cost {cost!r} of limiter {self.name!r}, whose bucket holds {_text(self.rule.capacity)}; allowed is at most "
                "that: give its rule a 'burst'"
            )
        return Limiter(self.name, self.rule, self.key, cost)

    def keyed(self, key: object) -> Limiter:
        """Return this limiter for one key.

        Raises:
            InvalidArgument: it is no text or number, or too long.
        """
        if isinstance(key, bool) or not isinstance(key, str | int | float):
            raise InvalidArgument(f"key {key!r:.100} of limiter {self.name!r}; allowed is a text or a number")
        return Limiter(self.name, self.rule, _key(str(key)), self.cost)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        cost = "" if self.cost == 1 else f" cost={_text(self.cost)}"
        key = "" if self.key is None else f" key={self.key}"
        return f"{self.name}:{self.rule}{cost}{key}"


def _read(text: str, shown: object) -> tuple[LimiterRule, float | None]:
    """Return a rule and the cost in a text, of which an error shows `shown`."""
    rate: tuple[float, str] | None = None
    window, numbers = False, dict[str, float]()
    for word in text.split():
        as_rate, as_number = _RATE.fullmatch(word), _NUMBER.fullmatch(word)
        if as_rate and rate is None:
            rate = float(as_rate[1]), as_rate[2]
        elif as_number and as_number[1] not in numbers:
            numbers[as_number[1]] = float(as_number[2])
        elif word == "window" and not window:
            window = True
        else:
            raise InvalidArgument(f"{word!r:.100} in limiter {shown!r:.100}; {ALLOWED}")
    cost, burst, concurrency = (numbers.get(name) for name in ("cost", "burst", "concurrency"))
    if concurrency is not None:
        if rate or window or burst is not None or not 1 <= concurrency <= MOST or concurrency % 1:
            raise InvalidArgument(f"'concurrency' in limiter {shown!r:.100}; allowed is a whole number from 1 on, without a rate")
        return LimiterRule(concurrency=int(concurrency)), cost
    if rate is None:
        raise InvalidArgument(f"limiter {shown!r:.100} has no rate; {ALLOWED}")
    return _checked(LimiterRule(*rate, burst, window), shown), cost


def _checked(rule: LimiterRule, shown: object) -> LimiterRule:
    """Return a rule of a rate whose numbers are in their ranges."""
    if not 1e-4 <= rule.number * 1000 / _UNITS[rule.unit] <= MOST:
        raise InvalidArgument(f"rate in limiter {shown!r:.100}; allowed is 0.0001 to {MOST:,} a second")
    if rule.window and (rule.burst is not None or rule.number % 1 or not 1 <= rule.number <= MOST_IN_WINDOW):
        raise InvalidArgument(
            f"'window' in limiter {shown!r:.100}; allowed is a whole number of 1 to {MOST_IN_WINDOW:,} in it, without 'burst'"
        )
    if rule.burst is not None and not 1 <= rule.burst <= MOST:
        raise InvalidArgument(f"'burst' in limiter {shown!r:.100}; allowed is 1 to {MOST:,}")
    return rule


def _key(key: str) -> str:
    """Return a key as it is kept."""
    if not key or len(key.encode("utf-8", "surrogatepass")) > LONGEST_KEY or "\0" in key:
        raise InvalidArgument(f"key {key[:100]!r} of a limiter; allowed is a text of 1 to {LONGEST_KEY} bytes, without NUL")
    return key


def check_id(limiter: object) -> None:
    """Check what names a limiter, or behind a colon also its key.

    Raises:
        InvalidArgument: it does not.
    """
    name, colon, key = limiter.partition(":") if isinstance(limiter, str) else ("", "", "")
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"limiter {limiter!r:.100}; allowed is a name of {LONGEST_NAME} letters, digits, '.', '_' and '-', and behind a "
            "colon a key"
        )
    if colon:
        _key(key)


def _text(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def check_limiter(headers: Any, properties: Any) -> None:
    """Check what names a message's limiter.

    Raises:
        InvalidArgument: as `Limiter.parse`.
    """
    for named in (headers.get(LIMITER), properties.get(LIMITER)):
        if named is not None:
            Limiter.parse(named)
