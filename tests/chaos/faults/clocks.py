"""Faults of clocks, by libfaketime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.faults.targets import of_a_worker

if TYPE_CHECKING:
    from tests.chaos.crew import Member
    from tests.chaos.storm import Storm

#: Seconds by which a clock differs from that of the machine, at most.
MOST_S = 10.0


def step_server_clock(storm: Storm) -> bool:
    """Set the server's clock, forward or back."""
    with storm.server_lock:
        if storm.server_clock is None:
            return False
        offset_s = round(storm.chooser.uniform(-MOST_S, MOST_S), 3)
        storm.note(f"the server's clock differs by {offset_s} s")
        storm.server_clock.set(offset_s)
    return True


@of_a_worker
def step_worker_clock(storm: Storm, member: Member) -> bool:
    """Set the clock of a worker, in all of its processes."""
    if member.clock is None:
        return False
    offset_s = round(storm.chooser.uniform(-MOST_S, MOST_S), 3)
    storm.note(f"a clock that differs by {offset_s} s:", member.life)
    member.clock.set(offset_s)
    return True
