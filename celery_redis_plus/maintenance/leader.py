"""Whether this process leads: the leader does for all processes what any of them may do.

The server elects it with a heartbeat (`heartbeat.py`, `lua/heartbeat_process.lua`). It leads for a lease, which each of its
heartbeats renews; the first heartbeat of another process behind the lease's end makes that one the leader.
docs/design/0013-lost-processes.md has the reasons.
"""

from __future__ import annotations

import math

from celery_redis_plus import clock
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask

#: Seconds between two heartbeats of the leader, and of one that is alone: nobody can take over from that.
LEADER_BEAT_S, ALONE_BEAT_S = 0.5, 1.0
#: Heartbeats in its lease: then another process leads. One that is killed with the leader is missed from then on at the latest.
BEATS_A_LEASE = 3
#: Looks of the leader in the shortest grace, and seconds between them at least.
LOOKS_IN_GRACE, LEAST_LOOK_S = 5, 0.1


class Leadership:
    """What the last heartbeat told of the leader."""

    def __init__(self, grace_s: float) -> None:
        """Know nothing yet; `grace_s` is `connection_lost_grace`, in seconds, 0: no process is judged by its connections."""
        #: Seconds between two heartbeats, at most.
        self._longest_beat_s = max((grace_s or math.inf) / LOOKS_IN_GRACE, LEAST_LOOK_S)
        #: Whether no other process lives, as far as is known.
        self.alone = False
        #: Counts the changes of the leader; fences what an earlier one still does.
        self.epoch = 0
        self._until = 0.0

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats of this process while it leads."""
        return min(ALONE_BEAT_S if self.alone else LEADER_BEAT_S, self._longest_beat_s)

    @property
    def lease_s(self) -> float:
        """Seconds for which a heartbeat makes it lead."""
        return BEATS_A_LEASE * self.beat_s

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return clock.now_s() < self._until

    def renew(self, epoch: int, until: float) -> None:
        """Lead `until` then, on `clock`, in seconds: a lease after the heartbeat was sent."""
        self.epoch = epoch
        self._until = until

    def end(self) -> None:
        """Lead no more."""
        self._until = 0.0


class LeaderTask(MaintenanceTask):
    """A task of the leader that remembers something: a new leader looks anew, at once, whatever it knew in an earlier epoch."""

    #: The epoch of its last run.
    _epoch = -1

    def __init__(self, leadership: Leadership) -> None:
        """Be due with each epoch of `leadership`."""
        self._leadership = leadership

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        return 0.0 if self._is_new_leader else self._due_at

    @property
    def _is_new_leader(self) -> bool:
        return self._epoch != self._leadership.epoch
