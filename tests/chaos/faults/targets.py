"""Whom a fault strikes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.crew import Member
    from tests.chaos.storm import Storm


def of_a_worker(strike: Callable[[Storm, Member], bool]) -> Callable[[Storm], bool]:
    """Let a fault strike a worker that no other fault has; it does not happen where all are taken."""

    @functools.wraps(strike)
    def on_one(storm: Storm) -> bool:
        with storm.crew.one(storm.chooser) as member:
            return member is not None and strike(storm, member)

    return on_one
