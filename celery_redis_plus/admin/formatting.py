"""Texts for people: lengths of time, sizes, names that others chose."""

from __future__ import annotations

from collections.abc import Sequence

from celery_redis_plus.broker.arguments.eta import time_of_ms

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SIZES = (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("B", 1))


def visible(text: str) -> str:
    """Return a text that others chose for one line of a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def span(seconds: float | None) -> str | None:
    """Return a length of time for people, in its largest unit: `3 s`, `12 min`, `2.5 h`."""
    return None if seconds is None else _in_largest_unit(seconds, _UNITS, whole=60)


def utc(ms: int) -> str:
    """Return a time of the server, in ms since the epoch, for people."""
    return f"{time_of_ms(ms):%Y-%m-%d %H:%M:%S} UTC"


def size(count: float) -> str:
    """Return a number of bytes for people, in its largest unit: `3 B`, `12 MB`, `2.5 GB`."""
    return _in_largest_unit(count, _SIZES, whole=1)


def _in_largest_unit(value: float, units: Sequence[tuple[str, int]], *, whole: int) -> str:
    """Return a value for people; those of units up to `whole` have no fraction."""
    name, unit = next(((name, unit) for name, unit in units if value >= unit), units[-1])
    amount = value / unit
    return f"{amount:.0f} {name}" if unit <= whole or amount >= 10 else f"{amount:.1f} {name}"
