"""One reason why a message is where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason.

    Attributes:
        kind: a word for programs; `docs/command-line.md` has them.
        text: for people, one line.
        values: the figures behind the text, by their names; names say the unit.
    """

    kind: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)
