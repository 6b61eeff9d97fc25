"""What the judge has to know about a run beside its record."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds between the clocks of two processes that read the same one; the server's is in whole milliseconds.
CLOCK_S = 0.002


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict the judge is.

    Attributes:
        acks: of a worker that was killed or fell silent, so many tasks that had ended may run again.
        strict: neither a lost connection nor a lost lease is a reason for a repeat; only deaths and silence are. Each message is
            a task, and its ack alone is no proof of its run. For runs whose history tells of every silence, of each run of a
            task, and of each queue when all was done.
        early: names of the tasks that are acked before they run: one that was lost with its worker is lost by its own choice.
        late_s: seconds after its time, or after its consumer's death, within which a message is delivered.
    """

    acks: int = 8
    strict: bool = False
    early: frozenset[str] = frozenset()
    late_s: float = 300.0
