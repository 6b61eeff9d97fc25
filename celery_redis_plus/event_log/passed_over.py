"""Entries of an event stream that are no events: somebody else wrote them. Readers pass over them and go on."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger(__name__)


class PassedOver:
    """Counts such entries, and logs the first of each queue."""

    def __init__(self) -> None:
        """Begin with none."""
        #: Queue -> how many.
        self.counts: Counter[str] = Counter()

    def add(self, queue: str, count: int) -> None:
        """Note `count` entries in the stream of `queue`."""
        if count and not self.counts[queue]:
            logger.warning(
                "the event log of queue %r has entries that are no events: somebody else writes there; they are passed over",
                queue, extra={"queue": queue},
            )  # fmt: skip
        self.counts[queue] += count
