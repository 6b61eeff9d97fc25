"""What a migration has done: messages by queue."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Different reasons that are kept of one queue.
MAX_REASONS = 5
#: The queue of unacked messages whose binding is gone.
UNKNOWN = "?"


@dataclass(slots=True)
class Moved:
    """What was moved of one queue, and what stays."""

    queue: str
    ready: int = 0
    delayed: int = 0
    #: How many of them a worker had, or had when it died.
    unacked: int = 0
    #: Messages that stay where they are; why is in `reasons`.
    left: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """All messages that were moved."""
        return self.ready + self.delayed

    def leave(self, count: int, reason: str) -> None:
        """Note that messages stay."""
        self.left += count
        if reason not in self.reasons and len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)


class Report:
    """The queues of a migration, by name."""

    def __init__(self) -> None:
        self._queues: dict[str, Moved] = {}

    def of(self, queue: str) -> Moved:
        """Return what is noted of a queue."""
        return self._queues.setdefault(queue, Moved(queue))

    def forget_left(self) -> None:
        """Begin another pass: what stays is counted anew."""
        for one in self._queues.values():
            one.left = 0
            one.reasons.clear()

    @property
    def queues(self) -> list[Moved]:
        """The queues of which something was moved, or stays."""
        return [one for _, one in sorted(self._queues.items()) if one.moved or one.left]

    @property
    def left(self) -> int:
        """All messages that stay."""
        return sum(one.left for one in self._queues.values())
