"""In which order a channel's queues are claimed from, and the messages of a claim delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage

#: Queues without a wakeup that a claim includes: while other queues have messages, wakeups are not read.
IDLE_QUEUES = 4


class QueueOrder:
    """The order of one channel's queues.

    With `round_robin` the queue that has given no message for the longest time is the first to be asked, so that a claim of a
    single message serves all queues in turn. `sorted` and `priority` ask the first queue first, always.
    """

    def __init__(self, strategy: str, consumed: Mapping[str, Any]) -> None:
        """Order the queues in `consumed`, which the caller keeps up to date, by the option `queue_order_strategy`."""
        self._strategy = strategy
        #: Whether a claim splits its credit among the queues.
        self.share = strategy == "round_robin"
        self._consumed = consumed
        #: Queues with a reason to claim from.
        self.candidates: dict[str, None] = {}
        #: Queues in the order in which a claim has last looked at them without a reason.
        self._line: dict[str, None] = {}
        #: Queue -> when it last gave messages, as a number that grows.
        self._served: dict[str, int] = {}
        self._servings = 0
        #: How many messages the channel's last claim brought.
        self.brought = 0

    def next_queues(self, *, few: bool) -> list[str]:
        """Return the queues that the next claim asks, in order: those with a reason, and some others in turn.

        The others are as many as the last claim brought messages, so that each queue is looked at once while the channel gets
        about as many messages as it has queues; with `few` they are `IDLE_QUEUES`.
        """
        consumed = self._consumed
        if len(consumed) == 1:
            return list(consumed)
        if self._strategy == "sorted":
            return sorted(consumed)
        if self._strategy == "priority":
            return list(consumed)
        chosen = [*self.candidates, *self.idle(IDLE_QUEUES if few else max(IDLE_QUEUES, self.brought))]
        served = self._served
        chosen.sort(key=lambda queue: served.get(queue, 0))
        return chosen

    def idle(self, most: int) -> list[str]:
        """Return up to `most` queues without a reason, those first that were not returned for the longest time."""
        line, candidates = self._line, self.candidates
        if len(line) != len(self._consumed):
            for queue in self._consumed:
                line.setdefault(queue)
        chosen: list[str] = []
        for queue in list(line):
            if len(chosen) == most:
                break
            if queue not in self._consumed:
                del line[queue]
            elif queue not in candidates:
                del line[queue]
                line[queue] = None
                chosen.append(queue)
        return chosen

    def took(self, messages: Sequence[UnackedMessage]) -> list[UnackedMessage]:
        """Note what a claim has brought; return it in the order of delivery."""
        self.brought = len(messages)
        if len(self._consumed) == 1 or not messages:
            return list(messages)
        counts = Counter(message.queue for message in messages)
        # Where credit does not divide evenly, the queue that gave more is the later one next time.
        for queue in sorted(counts, key=counts.__getitem__):
            self._servings += 1
            self._served[queue] = self._servings
        if len(counts) == 1 or not self.share:
            return list(messages)
        return interleaved(messages)

    def forget(self, queue: str) -> None:
        """Forget a queue that is consumed no more."""
        self.candidates.pop(queue, None)
        self._line.pop(queue, None)
        self._served.pop(queue, None)

    def clear(self) -> None:
        """Forget all queues."""
        self.candidates.clear()
        self._line.clear()
        self._served.clear()


def interleaved(messages: Sequence[UnackedMessage]) -> list[UnackedMessage]:
    """Return the messages with those of different queues in turn, each queue's own in their order."""
    seen: Counter[str] = Counter()
    rounds = []
    for message in messages:
        rounds.append((seen[message.queue], message))
        seen[message.queue] += 1
    rounds.sort(key=lambda pair: pair[0])
    return [message for _, message in rounds]
