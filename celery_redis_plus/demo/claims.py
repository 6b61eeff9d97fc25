"""What the demo says of itself, each as a comparison of something measured with what must be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, what was measured, what had to be, and whether it is so."""

    text: str
    measured: str
    required: str
    holds: bool

    @classmethod
    def equal(cls, text: str, measured: int, required: int) -> Self:
        """Claim that a number is just `required`."""
        return cls(text, f"{measured:,}", f"{required:,}", measured == required)

    @classmethod
    def at_least(cls, text: str, measured: float, limit: float, unit: str = "") -> Self:
        """Claim that a number is not below `limit`."""
        return cls(text, _number(measured, unit), f"at least {_number(limit, unit)}", measured >= limit)

    @classmethod
    def at_most(cls, text: str, measured: float, limit: float, unit: str = "") -> Self:
        """Claim that a number is not above `limit`."""
        return cls(text, _number(measured, unit), f"at most {_number(limit, unit)}", measured <= limit)

    @classmethod
    def none(cls, text: str, exceptions: Collection[object], shown: int = 10) -> Self:
        """Claim that there are no `exceptions`; the first of them are named."""
        names = ", ".join(str(exception) for exception in sorted(exceptions, key=str)[:shown])
        more = " …" if len(exceptions) > shown else ""
        return cls(text, f"{len(exceptions)} ({names}{more})" if exceptions else "0", "0", not exceptions)

    def __str__(self) -> str:
        return f"{self.text}: {self.measured} (must be {self.required})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a chapter of the demo found: its claims, and figures for the summary."""

    title: str
    claims: list[Claim]
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every claim is true."""
        return all(claim.holds for claim in self.claims)


def exit_status(outcomes: Collection[Outcome]) -> int:
    """Return 0 when all claims are true, and there are some; 1 otherwise."""
    return 0 if outcomes and all(outcome.claims and outcome.holds for outcome in outcomes) else 1


def _number(value: float, unit: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{text} {unit}".rstrip()
