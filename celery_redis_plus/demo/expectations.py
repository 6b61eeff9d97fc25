"""What the demo expects, each as a comparison of a measured value with the required one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Expectation:
    """A statement, the measured value, the required value, and whether they agree."""

    text: str
    measured: str
    required: str
    holds: bool

    @classmethod
    def equal(cls, text: str, measured: int, required: int) -> Self:
        """Expect that a number is just `required`."""
        return cls(text, f"{measured:,}", f"{required:,}", measured == required)

    @classmethod
    def at_least(cls, text: str, measured: float, limit: float, unit: str = "") -> Self:
        """Expect that a number is not below `limit`."""
        return cls(text, _number(measured, unit), f"at least {_number(limit, unit)}", measured >= limit)

    @classmethod
    def at_most(cls, text: str, measured: float, limit: float, unit: str = "") -> Self:
        """Expect that a number is not above `limit`."""
        return cls(text, _number(measured, unit), f"at most {_number(limit, unit)}", measured <= limit)

    @classmethod
    def none(cls, text: str, exceptions: Collection[object], shown: int = 10) -> Self:
        """Expect that there are no `exceptions`; the first of them are named."""
        names = ", ".join(str(exception) for exception in sorted(exceptions, key=str)[:shown])
        more = " …" if len(exceptions) > shown else ""
        return cls(text, f"{len(exceptions)} ({names}{more})" if exceptions else "0", "0", not exceptions)

    def __str__(self) -> str:
        return f"{self.text}: {self.measured} (must be {self.required})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a scenario."""

    title: str
    expectations: list[Expectation]

    @property
    def holds(self) -> bool:
        """Whether every expectation is met."""
        return all(expectation.holds for expectation in self.expectations)


def exit_status(outcomes: Collection[Outcome]) -> int:
    """Return 0 when all expectations are met, and there are some; 1 otherwise."""
    return 0 if outcomes and all(outcome.expectations and outcome.holds for outcome in outcomes) else 1


def _number(value: float, unit: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{text} {unit}".rstrip()
