"""What a check says: how bad it is, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

#: Nothing to do; better do something; messages are lost, doubled, stuck or refused, now or with the next fault; it could not be
#: looked at. Where a crash loses only the last second it is `ok`, where the last half minute, `advice`.
OK: Final = "ok"
ADVICE: Final = "advice"
DANGER: Final = "danger"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, or one of its results.

    Attributes:
        check: the check's name.
        level: `ok`, `advice`, `danger` or `unknown`.
        text: what was found, in one line.
        advice: what to do; '' for nothing.
        values: the figures behind the text, by their names; names say the unit.
    """

    check: str
    level: str
    text: str
    advice: str = ""
    values: dict[str, Any] = field(default_factory=dict)
