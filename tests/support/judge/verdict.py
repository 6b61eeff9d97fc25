"""What the judge finds, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.judge.records import Record

#: Violations that a report shows in full.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, in a sentence, and the records that prove it."""

    promise: str
    text: str
    proof: tuple[Record, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.promise}: {self.text}", *(f"    {record}" for record in self.proof)])


def violation(promise: str, text: str, *proof: Record | None) -> Violation:
    """Return a violation, proved by those of `proof` that are there."""
    return Violation(promise, text, tuple(record for record in proof if record is not None))


def report(violations: Sequence[Violation]) -> str:
    """Return the first violations in full, and how many there are of each promise."""
    counts: dict[str, int] = {}
    for one in violations:
        counts[one.promise] = counts.get(one.promise, 0) + 1
    head = ", ".join(f"{promise} {count}" for promise, count in counts.items())
    return "\n".join([f"{len(violations)} broken promises: {head}", *_texts(violations[:SHOWN])])


def _texts(violations: Iterable[Violation]) -> Iterable[str]:
    return (str(one) for one in violations)
