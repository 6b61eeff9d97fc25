"""The queue argument `x-redrive`: when failed messages go back to work by themselves, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from celery_redis_plus.broker.arguments.retry_policy import UNITS_MS, time_ms

_SETTINGS = ("after", "times", "rate")


@dataclass(frozen=True, slots=True)
class RedriveRule:
    """Dead letters of a queue are replayed.

    Attributes:
        after_ms: so long after their death.
        times: so often each, at most.
        rate_per_s: so many a second, at most.
    """

    after_ms: int
    times: int = 1
    rate_per_s: float = 10.0

    @classmethod
    def parse(cls, text: str) -> RedriveRule:
        """Return the rule that `text` has. Raises ValueError for a text that is none."""
        given = dict[str, str]()
        for setting in text.split():
            name, separator, value = setting.partition("=")
            if not separator or name not in _SETTINGS or name in given:
                raise ValueError(f"setting {setting!r}; allowed: {', '.join(_SETTINGS)}, each once, as name=value")
            given[name] = value
        times, rate = given.get("times", "1"), _rate_per_s(given.get("rate", "10/s"))
        if "after" not in given or not times.isdecimal() or int(times) < 1 or rate is None:
            raise ValueError(f"{text!r}; allowed: after=TIME, times=NUMBER from 1 on, rate=NUMBER/UNIT")
        return cls(time_ms(given["after"]), int(times), rate)


def _rate_per_s(text: str) -> float | None:
    """Return messages a second of a rate as Celery writes it, such as `100/m`; None for another text."""
    number, _, unit = text.partition("/")
    try:
        rate = float(number) * 1000 / UNITS_MS[unit or "s"]
    except (ValueError, KeyError):
        return None
    return rate if 1e-4 <= rate <= 1e6 else None
