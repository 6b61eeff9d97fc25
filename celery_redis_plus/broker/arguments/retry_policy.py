"""How long a message waits after a failed delivery: one function of the attempt, here and in `lua/include/retry_delay.lua`.

A queue has a policy by its argument `x-retry-policy`, which is the text of a `RetryPolicy`, or of several by the class of the
exception (`RetryPolicies`); RabbitMQ's `x-delayed-retry-min` and
`-max` (https://www.rabbitmq.com/docs/quorum-queues#delayed-retry) are the linear one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

#: Attempt after which the delay stays the same: far beyond any delivery limit.
MAX_BACKOFF_ATTEMPT = 1000
#: Milliseconds, a hundred years: an eta stays below the 10^13 that a score keeps for the time.
MAX_RETRY_DELAY_MS = 100 * 31_557_600_000
#: What a text may have behind a time, in milliseconds.
UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CLASS = re.compile(r"[^\W\d]\w*")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(\w*)")
POLICY_KINDS = ("none", "constant", "linear", "exponential", "fibonacci", "list")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The delays before a failed message is delivered again. Times are milliseconds.

    `str(policy)` is what the queue argument `x-retry-policy` takes, such as `exponential first=1000 max=60000 jitter=0.2`. In
    such a text a time may have a unit: ms, s, m, h or d.

    Attributes:
        kind: `none` (a failed message is not tried again), `constant`, `linear` (`first`, then `step` more each time),
            `exponential` (each time `multiplier` as long), `fibonacci` (`first` times 1, 1, 2, 3, 5 ...) or `list`.
        first: the first delay.
        step: what `linear` adds; 0 is `first`.
        multiplier: of `exponential`.
        max: the longest delay; 0 is no limit.
        jitter: share of each delay, 0-1, that is taken off at random: by message id and attempt, so always the same.
        total: a message that would have waited longer than this in all is not tried again; 0 is no limit.
        limit: retries at most; None is no limit.
        delays: of `list`; after the last one the message is not tried again.
    """

    kind: str
    first: int = 0
    step: int = 0
    multiplier: float = 2.0
    max: int = 0
    jitter: float = 0.0
    total: int = 0
    limit: int | None = None
    delays: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where a value is not allowed."""
        if self.kind not in POLICY_KINDS:
            raise ValueError(f"kind {self.kind!r}; allowed: {', '.join(POLICY_KINDS)}")
        for name in ("first", "step", "max", "total"):
            if not 0 <= getattr(self, name) <= MAX_RETRY_DELAY_MS:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 0 to {MAX_RETRY_DELAY_MS} ms")
        if self.kind not in ("none", "list") and self.first < 1:
            raise ValueError(f"first={self.first}; allowed: 1 to {MAX_RETRY_DELAY_MS} ms")
        if not 1 <= self.multiplier <= 1000:
            raise ValueError(f"multiplier={self.multiplier:g}; allowed: 1 to 1000")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter:g}; allowed: 0 to 1")
        if self.limit is not None and not 0 <= self.limit <= MAX_RETRY_DELAY_MS:
            raise ValueError(f"limit={self.limit}; allowed: a whole number of retries from 0 on")
        if (self.kind == "list") != bool(self.delays) or not all(0 <= delay <= MAX_RETRY_DELAY_MS for delay in self.delays):
            raise ValueError("delays are for the kind list, which needs some: list delays=1000,5000")

    @classmethod
    def parse(cls, text: str) -> RetryPolicy:
        """Return the policy that `text` names.

        Raises:
            ValueError: there is no such policy; the error says what is allowed.
        """
        kind, *settings = text.split() or [""]
        known = {one.name: one.type for one in fields(cls) if one.name != "kind"}
        values: dict[str, int | float | tuple[int, ...]] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in known:
                raise ValueError(f"setting {setting!r}; allowed: {', '.join(known)}, each as name=value")
            if name == "limit":
                if not value.isdecimal():
                    raise ValueError(f"limit={value}; allowed: a whole number of retries from 0 on")
                values[name] = int(value)
            elif name == "delays":
                values[name] = tuple(time_ms(delay) for delay in value.split(","))
            else:
                values[name] = float(value) if known[name] == "float" else time_ms(value)
        return cls(kind, **values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Return the text that `parse` understands."""
        texts = [self.kind]
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name == "delays" and value:
                texts.append("delays=" + ",".join(map(str, value)))
            elif setting.name not in ("kind", "delays") and value != setting.default:
                texts.append(f"{setting.name}={value:g}" if isinstance(value, float) else f"{setting.name}={value}")
        return " ".join(texts)

    @property
    def record(self) -> str:
        """A line of the field `retry` of a queue's record, as `retry_delay.lua` reads it."""
        step = self.step or self.first
        delays = ",".join(map(str, self.delays)) or "-"
        limit = "-" if self.limit is None else self.limit
        return f"{self.kind} {self.first} {step} {self.multiplier!r} {self.max} {self.jitter!r} {self.total} {delays} {limit}"

    def delay_ms(self, attempt: int, message_id: str = "") -> int | None:
        """Return how long a message waits after its failed delivery number `attempt` (from 1); None: it is not tried again."""
        if self.kind == "none" or (self.kind == "list" and attempt > len(self.delays)):
            return None
        if self.limit is not None and attempt > self.limit:
            return None
        waited = 0
        if self.total:
            waited = sum(self._delay(number, message_id) for number in range(1, min(attempt, MAX_BACKOFF_ATTEMPT) + 1))
        return None if self.total and waited > self.total else self._delay(attempt, message_id)

    def _delay(self, attempt: int, message_id: str) -> int:
        attempt = min(attempt, MAX_BACKOFF_ATTEMPT)
        longest = self.max or MAX_RETRY_DELAY_MS
        if self.kind == "list":
            delay = float(self.delays[attempt - 1])
        elif self.kind == "linear":
            delay = float(self.first + (self.step or self.first) * (attempt - 1))
        elif self.kind == "exponential":
            delay = float(self.first)
            for _ in range(attempt - 1):
                delay = min(delay * self.multiplier, longest)
        elif self.kind == "fibonacci":
            last, delay = 0.0, float(self.first)
            for _ in range(attempt - 1):
                last, delay = delay, min(last + delay, longest)
        else:
            delay = float(self.first)
        delay = min(delay, longest)
        if self.jitter:
            # 32 bits of a hash: the same here and in Lua, and no state.
            chance = int(hashlib.sha1(f"{message_id} {attempt}".encode(), usedforsecurity=False).hexdigest()[:8], 16) / 2**32
            delay *= 1 - self.jitter * chance
        return int(delay)


@dataclass(frozen=True, slots=True)
class RetryPolicies:
    """The retry policies of a queue: by the class of the exception with which the work ended, and one for all others.

    `str(policies)` is what the queue argument `x-retry-policy` takes: `exponential first=1s limit=8; ValueError: none`.

    Attributes:
        others: None: as without a policy.
        by_error: class name -> policy.
    """

    others: RetryPolicy | None
    by_error: Mapping[str, RetryPolicy] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> RetryPolicies:
        """Return the policies that `text` names.

        Raises:
            ValueError: it names none, or one of them is not allowed; the error says what is.
        """
        others, by_error = [], dict[str, RetryPolicy]()
        for part in text.split(";"):
            kind, separator, policy = part.rpartition(":")
            name = kind.strip()
            if not separator:
                others.append(RetryPolicy.parse(part))
            elif not _CLASS.fullmatch(name) or name in by_error:
                raise ValueError(f"class {name!r}; allowed: the name of an exception's class without its module, each once")
            else:
                by_error[name] = RetryPolicy.parse(policy)
        if len(others) > 1:
            raise ValueError("two policies without a class; allowed: one, for all other exceptions")
        return cls(others[0] if others else None, by_error)

    def __str__(self) -> str:
        """Return the text that `parse` understands."""
        texts = [] if self.others is None else [str(self.others)]
        return "; ".join([*texts, *(f"{name}: {policy}" for name, policy in self.by_error.items())])

    @property
    def record(self) -> str:
        """The field `retry` of a queue's record, as `retry_delay.lua` reads it."""
        others = "-" if self.others is None else self.others.record
        return "\n".join([others, *(f"{name} {policy.record}" for name, policy in self.by_error.items())])


def time_ms(text: str) -> int:
    """Return the milliseconds that a time has, such as `1500`, `1.5s` or `2h`. Raises ValueError for other texts."""
    match = _TIME.fullmatch(text)
    if match is None or match[2] not in UNITS_MS:
        raise ValueError(f"time {text!r}; allowed: a number of ms, or one with the unit ms, s, m, h or d")
    return round(float(match[1]) * UNITS_MS[match[2]])
