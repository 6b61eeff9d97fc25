"""Whether this process leads: the leader does for all processes what any of them may do.

The server elects it with a heartbeat (`heartbeat.py`, `lua/heartbeat_process.lua`). It leads for a lease, which each of its
heartbeats renews; the first heartbeat of another process behind the lease's end makes that one the leader.
docs/design/0013-lost-processes.md has the reasons.
"""

from __future__ import annotations

import math

from celery_redis_plus import clock

#: Seconds between two heartbeats of the leader, and heartbeats in its lease: after so many seconds another one leads.
LEADER_BEAT_S, BEATS_A_LEASE = 1.0, 3
#: Looks of the leader in the shortest grace, and seconds between them at least.
LOOKS_IN_GRACE, LEAST_LOOK_S = 5, 0.1


class Leadership:
    """What the last heartbeat told of the leader."""

    def __init__(self, grace_s: float) -> None:
        """Know nothing yet; `grace_s` is `connection_lost_grace`, in seconds, 0: no process is judged by its connections."""
        #: Seconds between two heartbeats of this process while it leads.
        self.beat_s = min(LEADER_BEAT_S, max((grace_s or math.inf) / LOOKS_IN_GRACE, LEAST_LOOK_S))
        self.lease_s = BEATS_A_LEASE * self.beat_s
        #: Counts the changes of the leader; fences what an earlier one still does.
        self.epoch = 0
        self._until = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return clock.now_s() < self._until

    def renew(self, epoch: int, beaten_at: float) -> None:
        """Lead for a lease from `beaten_at` on, on `clock`, in seconds: when the heartbeat was sent."""
        self.epoch = epoch
        self._until = beaten_at + self.lease_s

    def end(self) -> None:
        """Lead no more."""
        self._until = 0.0
