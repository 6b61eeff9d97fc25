"""Plans what a query reads: positions by queue, limits, and the split into Spark partitions. Plain arithmetic, no Spark."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from celery_redis_plus.errors import EventsLost, InvalidArgument
from celery_redis_plus.event_log.event_logs import log_passed_over, names_in
from celery_redis_plus.event_log.offsets import BEGINNING, Id, Offsets, loss_message
from celery_redis_plus.events import entry_id
from celery_redis_plus.shards.absent_shard import PASSING

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs
    from celery_redis_plus.spark.source_options import SourceOptions

logger = logging.getLogger(__name__)

#: An offset as Spark stores it in the checkpoint: queue -> last event read. A missing queue was not read yet.
Offset = dict[str, str]

EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class EventRange:
    """Events of `queue` from `epoch`-`low` to `epoch`-`high`."""

    queue: str
    epoch: int
    low: int
    high: int

    @property
    def count(self) -> int:
        """How many they are."""
        return self.high - self.low + 1


#: What one task reads.
Partition = tuple[EventRange, ...]


class Planner:
    """Plans the reads of one query.

    Attributes:
        lost: how many events of each queue were gone before they were planned, with `failOnDataLoss=false`.
        foreign: by queue, why its events cannot be read now: somebody else has written one of its keys, a later release writes
            there, or its shard cannot be reached. The other queues are read; this one keeps its place in the offset, and is read
            on from there once that is over.
    """

    def __init__(self, log: EventLogs, options: SourceOptions) -> None:
        self.log = log
        self.options = options
        self.lost: dict[str, int] = {}
        self.foreign: dict[str, Exception] = {}

    def numberings(self) -> dict[str, Offsets]:
        """Return what the wanted queues have now, without those of `foreign`.

        Raises:
            WrongKeyType: no queue can be read; UnknownEventSchema or ValueError, by what is wrong with the first one.
        """
        return self._sound(self.log.queues(self.options.queues))

    def start(self, default: str) -> Offset:
        """Return where a query without a checkpoint starts; `default` is `earliest` or `latest`.

        Raises:
            WrongKeyType: a queue that the options name in full cannot be read; or as `numberings`.
        """
        numberings, options = self.numberings(), self.options
        for queue in {*names_in(options.queues), *(options.starting_offsets if _by_queue(options.starting_offsets) else ())}:
            if queue in self.foreign:
                raise self.foreign[queue]
        times: dict[str, int] = options.starting_offsets_by_timestamp or {}
        _check_names(times, numberings)
        if options.starting_timestamp is not None:
            times = dict.fromkeys(numberings, options.starting_timestamp) | times
        found = {queue: self.log.first_after(numberings[queue], ms) for queue, ms in times.items()}
        rest = {queue: numbering for queue, numbering in numberings.items() if queue not in times}
        resolved = _resolve(options.starting_offsets or default, rest, EARLIEST, numberings)
        return {
            queue: _text(numbering.id(found[queue]) if queue in found else resolved[queue])
            for queue, numbering in numberings.items()
        }

    def end(self) -> Offset:
        """Return where a batch ends."""
        numberings = self.numberings()
        if self.options.ending_timestamp is not None:
            ms = self.options.ending_timestamp
            return {queue: _text(n.id(self.log.first_after(n, ms))) for queue, n in numberings.items()}
        resolved = _resolve(self.options.ending_offsets, numberings, LATEST)
        return {queue: _text(position) for queue, position in resolved.items()}

    def newest(self) -> Offset:
        """Return the last event of each queue: the offset of a query that has read everything."""
        return {queue: _text(numbering.id(numbering.total)) for queue, numbering in self.numberings().items()}

    def advance(self, start: Offset, limit: int | None, goal: Offset | None = None) -> Offset:
        """Return how far a micro-batch goes from `start`: to `goal` (by default the newest), or about `limit` events.

        Each queue gets its share of the limit by what it has to read, rounded up: a few events too many cost nothing, and a
        micro-batch for the rest would cost as much as one of 20,000. A queue whose event log has ended stays in the offset as
        long as the broker knows its numbers, by which a later log goes on.
        """
        numberings = self._of_offset(start)
        start = moved(start, numberings, self.log.queue_of)
        begin = {queue: self._position(n, start.get(queue)) for queue, n in numberings.items()}
        total = {queue: n.total if goal is None else self._goal(n, goal.get(queue)) for queue, n in numberings.items()}
        backlog = {queue: max(0, total[queue] - begin[queue]) for queue in numberings}
        everything = sum(backlog.values())
        share = 1.0 if limit is None or everything <= limit else limit / everything
        end = {queue: begin[queue] + math.ceil(backlog[queue] * share) for queue in numberings}
        read = {
            # A position that a failover has cut off stays as it is: it tells what was read.
            queue: start[queue]
            if queue in start and numberings[queue].is_over and end[queue] == begin[queue]
            else _text(numberings[queue].id(end[queue]))
            for queue in numberings
            if end[queue] or queue in start
        }
        return read | {queue: start[queue] for queue in self.foreign if queue in start}

    def reachable(self, start: Offset | None, end: Offset) -> Offset:
        """Return `end` without what is new since `start` on shards that cannot be reached."""
        self._of_offset(end)
        away = {queue for queue in end if isinstance(self.foreign.get(queue), PASSING)}
        return {queue: position for queue, position in end.items() if queue not in away} | {
            queue: position for queue, position in (start or {}).items() if queue in away
        }

    def event_ranges(self, start: Offset, end: Offset) -> list[EventRange]:
        """Return the events between two offsets.

        Raises:
            EventsLost: with `failOnDataLoss`, some of them are gone.
        """
        numberings = self._of_offset(end)
        start = moved(start, numberings, self.log.queue_of)
        ranges: list[EventRange] = []
        for queue, position in end.items():
            numbering = numberings.get(queue)
            if numbering is None:
                if start.get(queue) == position:
                    continue
                if isinstance(self.foreign.get(queue), PASSING):
                    # Nothing is lost: they are read when its shard is back.
                    raise self.foreign[queue]
                if queue in self.foreign:
                    self._on_loss(queue, f"queue {queue!r}: its events up to {position} cannot be read: {self.foreign[queue]}", 0)
                else:
                    self._on_loss(queue, f"queue {queue!r}: its events up to {position} were removed before they were read", 0)
                continue
            low, high = self._position(numbering, start.get(queue)), self._position(numbering, position)
            if low < min(numbering.trimmed, high):
                gone = min(numbering.trimmed, high)
                self._on_loss(queue, loss_message(numbering, low, gone), gone - low)
                low = gone
            ranges += [EventRange(queue, *piece) for piece in numbering.ranges(low, high)]
        return ranges

    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        """Return the events between two offsets, divided among tasks: as few as the options allow, each with the same number.

        A task costs a second and makes a file, whatever it reads, so it reads ranges of many queues.

        Raises:
            EventsLost: as `event_ranges`.
        """
        ranges = self.event_ranges(start, end)
        everything = sum(part.count for part in ranges)
        count = max(math.ceil(everything / self.options.max_records_per_partition), self.options.min_partitions or 1)
        size = max(1, math.ceil(everything / count))
        partitions: list[list[EventRange]] = []
        room = 0
        for part in ranges:
            low = part.low
            while low <= part.high:
                if not room:
                    partitions.append([])
                    room = size
                high = min(part.high, low + room - 1)
                partitions[-1].append(replace(part, low=low, high=high))
                room -= high - low + 1
                low = high + 1
        return [tuple(partition) for partition in partitions]

    def lag(self, start: Offset) -> int:
        """Return how many events come after `start`."""
        numberings = self.numberings()
        start = moved(start, numberings, self.log.queue_of)
        return sum(n.total - self._position(n, start.get(queue)) for queue, n in numberings.items())

    def rows_of(self, start: Offset, size: int) -> int:
        """Return about how many events after `start` take `size` bytes in Redis, one at least; those of a queue count alike."""
        numberings = self.numberings()
        start = moved(start, numberings, self.log.queue_of)
        waiting = {queue: n.total - max(n.trimmed, self._position(n, start.get(queue))) for queue, n in numberings.items()}
        weight = 0.0
        for own, keys in self.log.parts([queue for queue, count in waiting.items() if count > 0]):
            taken = own.ask([("MEMORY", "USAGE", of.events) for of in keys.values()])
            for queue, used in zip(keys, taken, strict=True):
                weight += waiting[queue] * (used or 0) / (numberings[queue].total - numberings[queue].trimmed)
        return max(1, int(size * sum(waiting.values()) / weight)) if weight else 1

    def _of_offset(self, offset: Offset) -> dict[str, Offsets]:
        """Return what the wanted queues have, and those of an offset whose event logs have ended, while that is known."""
        queues = self.log.queues(self.options.queues)
        ended = [queue for queue in offset if queue not in queues]
        numberings = self._sound(queues, ended)
        return {queue: numbering for queue, numbering in numberings.items() if queue not in ended or numbering.epochs}

    def _sound(self, queues: Sequence[str], ended: Sequence[str] = ()) -> dict[str, Offsets]:
        """Return what can be read; what cannot is noted, and logged when that changes."""
        found, foreign = self.log.sound_numberings(queues, strict=self.options.fail_on_data_loss)
        found_ended, foreign_ended = self.log.sound_numberings(ended, strict=False)
        if foreign and not found:
            raise next(iter(foreign.values()))
        found |= found_ended
        for queue, error in (foreign | foreign_ended).items():
            # Of a shard that cannot be reached, one line is enough.
            if queue not in self.foreign and not isinstance(error, PASSING):
                log_passed_over(queue, error)
            self.foreign[queue] = error
        for queue in self.foreign.keys() & found.keys():
            if not isinstance(self.foreign.pop(queue), PASSING):
                logger.info("the events of queue %r can be read again", queue, extra={"queue": queue})
        return found

    def _position(self, numbering: Offsets, offset: str | None) -> int:
        try:
            return numbering.index(BEGINNING if offset is None else entry_id(offset))
        except EventsLost as error:
            self._on_loss(numbering.queue, str(error), 0)
            return numbering.position_of(entry_id(offset or "0-0"))

    def _goal(self, numbering: Offsets, offset: str | None) -> int:
        return 0 if offset is None else self._position(numbering, offset)

    def _on_loss(self, queue: str, message: str, count: int) -> None:
        if self.options.fail_on_data_loss:
            raise EventsLost(message)
        self.lost[queue] = self.lost.get(queue, 0) + count
        logger.warning("%s (failOnDataLoss=false)", message)


def moved(start: Offset, numberings: Mapping[str, Offsets], queue_of: Callable[[str], str]) -> Offset:
    """Return an offset in which positions have the names that their events have now.

    After shards were added, a queue's earlier events are those of the first shard, and its own shard has other ones.

    Args:
        start: an offset.
        numberings: what the queues have now.
        queue_of: as of `EventLogs`.
    """
    found = dict(start)

    def has(name: str, epoch: int) -> bool:
        return name in numberings and any(epoch == one for one, _ in numberings[name].epochs)

    for name in numberings:
        queue = queue_of(name)
        if name != queue and name not in start and queue in found:
            epoch, _ = entry_id(start[queue])
            if has(name, epoch) and not has(queue, epoch):
                found[name] = found.pop(queue)
    return found


def _by_queue(wanted: object) -> TypeGuard[Mapping[str, Id | int]]:
    return isinstance(wanted, Mapping)


def _check_names(queues: Iterable[str], numberings: Mapping[str, Offsets]) -> None:
    unknown = sorted(set(queues) - set(numberings))
    if unknown:
        raise InvalidArgument(f"offsets name queue {unknown[0]!r}, which is not read; queues that are: {', '.join(numberings)}")


def _resolve(
    wanted: str | Mapping[str, Id | int],
    numberings: Mapping[str, Offsets],
    default: int,
    known: Mapping[str, Offsets] | None = None,
) -> dict[str, Id]:
    """Return the positions of queues; `known` are all that `wanted` may name."""
    if isinstance(wanted, str):
        wanted = dict.fromkeys(numberings, EARLIEST if wanted == "earliest" else LATEST)
    _check_names(wanted, known if known is not None else numberings)
    positions = {}
    for queue, numbering in numberings.items():
        position = wanted.get(queue, default)
        if isinstance(position, int):
            position = numbering.id(numbering.trimmed if position == EARLIEST else numbering.total)
        positions[queue] = position
    return positions


def _text(position: Id) -> str:
    return f"{position[0]}-{position[1]}"
