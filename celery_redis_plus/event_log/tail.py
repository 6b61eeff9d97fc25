"""Follows the event logs of queues: what happens from now on, and the last events before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from celery_redis_plus.errors import WrongKeyType
from celery_redis_plus.event_log.passed_over import PassedOver
from celery_redis_plus.events import Event, read_entry

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import Entry, EventLogs

#: Events that one command reads of a queue: under a millisecond of the server's time.
EVENTS_A_READ = 500
#: Events before the first one shown in which the tasks of messages are looked up.
LOOK_BACK = 10_000
#: Messages whose task is remembered.
REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class TailedEvent:
    """An event with its queue, and the task of its message where it is known: only `published` events have it."""

    queue: str
    event: Event
    task: str | None
    task_id: str | None


class Tail:
    """Reads the events of queues as they are written; each call of `read` goes on where the last one ended.

    Args:
        log: where the events are.
        queues: names or patterns, separated by commas; a queue that gets an event log later is followed as well.
        task: only events of messages of this task, a name or a pattern.
        kinds: only these events.
        last: how many events before now are shown of each queue.
    """

    def __init__(
        self, log: EventLogs, queues: str = "*", *, task: str | None = None, kinds: Sequence[str] = (), last: int = 0
    ) -> None:  # fmt: skip
        self._log = log
        self._wanted = queues
        self._task = task
        self._kinds = frozenset(kinds)
        #: Queue -> the last entry's id that was read.
        self._read: dict[str, bytes] = {}
        #: Message -> its task and task id, the youngest last.
        self._tasks: OrderedDict[str, tuple[str | None, str | None]] = OrderedDict()
        self._passed_over = PassedOver()
        #: Queues whose events cannot be read.
        self._left_out: set[str] = set()
        self._begin(log.readable(queues), last)

    def _begin(self, queues: Sequence[str], last: int) -> None:
        for queue, offsets in self._log.numberings(queues, strict=False).items():
            first = max(offsets.trimmed, offsets.total - last)
            for epoch, begin, end in offsets.ranges(max(offsets.trimmed, first - LOOK_BACK), first):
                for entries in self._log.chunks(queue, epoch, begin, end, EVENTS_A_READ):
                    for entry in entries:
                        self._described(queue, entry)
            epoch, number = offsets.id(first)
            self._read[queue] = f"{epoch}-{number}".encode()

    def read(self) -> list[TailedEvent]:
        """Return the events since the last call, up to 500 a queue, in the order of their times; [] where there are none.

        Raises:
            NoEvents: no queue has events any more.
            UnknownEventSchema: a later release wrote there.
            redis.exceptions.RedisError: the server cannot be reached.
        """
        queues = [queue for queue in self._log.queues(self._wanted) if queue not in self._left_out]
        try:
            replies = self._ask(queues)
        except WrongKeyType:
            readable = self._log.readable(self._wanted)
            self._left_out.update(set(queues).difference(readable))
            queues = [queue for queue in queues if queue in readable]
            replies = self._ask(queues)
        found: list[TailedEvent] = []
        for queue, entries in replies.items():
            found += filter(None, [self._described(queue, entry) for entry in entries])
            if entries:
                self._read[queue] = entries[-1][0]
        return sorted(filter(self._is_wanted, found), key=lambda one: one.event.ts)

    def _ask(self, queues: Sequence[str]) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for own, keys in self._log.parts(queues):
            places = ((of_queue.events, b"(" + self._read.get(queue, b"0-0")) for queue, of_queue in keys.items())
            replies = own.ask([("XRANGE", events, after, "+", "COUNT", EVENTS_A_READ) for events, after in places])
            found |= dict(zip(keys, replies, strict=True))
        return found

    def _described(self, queue: str, entry: Entry) -> TailedEvent | None:
        """Return the event of an entry, None where it is none; note the task of its message, or look it up."""
        event = read_entry(entry[1])
        if event is None:
            self._passed_over.add(queue, 1)
            return None
        if event.event == "published":
            self._tasks[event.id] = (event.task, event.task_id)
            if len(self._tasks) > REMEMBERED:
                self._tasks.popitem(last=False)
        return TailedEvent(self._log.queue_of(queue), event, *self._tasks.get(event.id, (None, None)))

    def _is_wanted(self, one: TailedEvent) -> bool:
        if self._kinds and one.event.event not in self._kinds:
            return False
        return self._task is None or fnmatchcase(one.task or "", self._task)
