"""The messages that this process has acked last.

A failover to a replica that lags, or a state that is restored, brings acked messages back. The process that has acked one acks
it again instead of running it again. A message that was acked never comes back for another reason: what is rejected, requeued,
given back or replayed was not acked.
"""

from __future__ import annotations

#: Tags of one generation; two are remembered. A replica lags by much fewer acks of one process.
GENERATION = 10_000


class FinishedTags:
    """A bounded set of tags, the oldest of which are forgotten first. Its methods may be called from any thread."""

    def __init__(self, generation: int = GENERATION) -> None:
        """Remember the last `generation` tags, and up to as many before them."""
        self._generation = generation
        self._new: set[str] = set()
        self._old: set[str] = set()

    def add(self, tag: str) -> None:
        """Remember a tag."""
        if len(self._new) >= self._generation:
            self._old, self._new = self._new, set()
        self._new.add(tag)

    def __contains__(self, tag: str) -> bool:
        """Return whether the tag is remembered."""
        return tag in self._new or tag in self._old

    def __len__(self) -> int:
        """Return how many tags are remembered."""
        return len(self._new) + len(self._old)
