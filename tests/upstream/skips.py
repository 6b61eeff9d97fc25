"""The tests that are left out, each with its reason. Everything else must pass.

A skip is for a test that asks how kombu's redis transport is made inside (key names, private methods, its
poller's attributes), not what it does; or that needs a service that is no broker.
`docs/upstream.md` names the behaviour behind each.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Begins the reason that pytest shows, to tell our skips from the suite's own.
OURS = "left out: "


@dataclass(frozen=True, slots=True)
class Skip:
    """Tests of one suite that are left out.

    Args:
        suite: `kombu` or `celery`.
        pattern: see `patterns.py`; one without `::` is a whole file, which is then not even imported.
        reason: why.
        everywhere: also when kombu's own redis transport runs.
    """

    suite: str
    pattern: str
    reason: str
    everywhere: bool = False

    @property
    def is_file(self) -> bool:
        """Tell whether the whole file is left out."""
        return "::" not in self.pattern


SKIPS: tuple[Skip, ...] = (
    Skip(
        "celery",
        "test_backend.py",
        "Azure Blob Storage as result backend: needs an Azure account and its libraries; no broker in it",
        everywhere=True,
    ),
)


def skips_for(suite: str, transport: str) -> tuple[Skip, ...]:
    """Return what is left out of `suite` on `transport`."""
    return tuple(skip for skip in SKIPS if skip.suite == suite and (skip.everywhere or transport != "redis"))
