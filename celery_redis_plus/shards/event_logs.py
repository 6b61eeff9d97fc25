"""The event logs of all shards of a broker as one.

A queue is on the shard of its name. It also has events on another one where it was there before shards were added. These are
known by another name: `mail (shard 2)`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from celery_redis_plus.broker.exchanges.declared_topology import check_mark, id_of_mark
from celery_redis_plus.connection.broker_at import brokers_at
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import InvalidArgument, ShardUnreachable
from celery_redis_plus.event_log.event_logs import EventLogs, chosen
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.shards.absent_shard import PASSING, AbsentShard

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import Entry, LogServer
    from celery_redis_plus.event_log.offsets import Offsets
    from celery_redis_plus.keys import QueueKeys

logger = logging.getLogger(__name__)

#: Seconds after which a shard that does not answer is gone on without.
STALLED_S = 10.0

_ELSEWHERE = re.compile(r"(?P<queue>.*) \(shard (?P<shard>\d+)\)", re.DOTALL)
T = TypeVar("T")
U = TypeVar("U")
OnDatabase = Callable[[int, str], object]


def _nothing(_shard: int, _database_id: str) -> None: ...


def events_at(
    url: str, prefix: str = "", *, shard: int | None = None, partial: bool = False, timeout_s: float = 60.0,
    on_database: OnDatabase = _nothing,
) -> ShardEventLogs:  # fmt: skip
    """Return the events of the broker at `url`: of all its shards, or of the one that `shard` or the URL names.

    Args:
        url: the broker's URL, as Celery has it; `shards=3` in its query is the app's option.
        prefix: the `global_keyprefix` that the application uses, if it is not in the URL.
        shard: the number of one shard.
        partial: as of `ShardEventLogs`.
        timeout_s: seconds that a server may take for one answer; at most 10 of several shards with `partial`.
        on_database: as of `ShardEventLogs`.

    Raises:
        InvalidAddress: the URL cannot be used.
        OptionError: an option in the URL cannot; URL and `prefix` name two applications; or there is no such shard.
    """
    address, places = brokers_at(url, prefix=prefix, shard=shard)
    if partial and len(places) > 1:
        timeout_s = min(timeout_s, STALLED_S)
    logs = {place.number: EventLog.at(address, place.options, timeout_s=timeout_s) for place in places}
    return ShardEventLogs(logs, places[0].options.shards, partial=partial, on_database=on_database)


class ShardEventLogs(EventLogs):
    """Reads the events of several shards, or of one of them, or of a broker without.

    Args:
        logs: the event log of each shard, by its number.
        shards: how many the broker has, with those that are not read.
        partial: go on without a shard that cannot be reached, as `unreachable` says, until it is there again; else that is an
            error. Where none can be reached, it always is.
        on_database: called with the number of a shard and its database's id, before its events are read first.
    """

    def __init__(
        self, logs: Mapping[int, EventLog], shards: int, *, partial: bool = False, on_database: OnDatabase = _nothing
    ) -> None:
        self._logs = dict(logs)
        self._shards = shards
        self._partial = partial
        self._on_database = on_database
        #: Those whose mark was read.
        self._checked: set[int] = set()
        self._absent: dict[int, AbsentShard] = {}

    def close(self) -> None:
        """Close the connections; the next use opens others."""
        for log in self._logs.values():
            log.close()
        for absent in self._absent.values():
            absent.give_up()
        self._absent.clear()

    def ping(self) -> None:
        """See that each shard answers. Raises as `EventLog.ask`."""
        for log in self._logs.values():
            log.ping()

    # ---- names

    def queues(self, wanted: str = "*") -> list[str]:
        """Return the names of the queues that have events and that `wanted` names, sorted.

        Raises:
            NoEvents, InvalidArgument: as `EventLogs.queues`.
            OptionError: the broker's queues are spread over another number of shards.
            ServerUnreachable: and its kin from `errors`; of one shard only where `partial` is off.
        """
        answers = self._ask(dict.fromkeys(self._logs), lambda log, _: log.known())
        found = {self._name(queue, shard): queue for shard, queues in answers.items() for queue in queues}
        where = f"{self._logs[min(answers)].where}, of shards {', '.join(map(str, answers))}"
        if self._shards == 1:
            where = self._logs[0].where
        return chosen(found, wanted, where, lambda queue: self._place(queue)[1] in self._absent)

    def queue_of(self, name: str) -> str:
        """Return the queue whose events are known by a name."""
        return self._place(name)[0]

    def shard_of(self, name: str) -> int:
        """Return the number of the shard that has these events."""
        return self._place(name)[1]

    @property
    def unreachable(self) -> Mapping[int, Exception]:
        """The shards that could not be reached when they were asked last, by their numbers, and why."""
        return {shard: absent.error for shard, absent in self._absent.items()}

    def _name(self, queue: str, shard: int) -> str:
        is_home = shard_of(queue, self._shards) == shard
        # A queue may be called so itself.
        return queue if self._shards == 1 or (is_home and not _ELSEWHERE.fullmatch(queue)) else f"{queue} (shard {shard})"

    def _place(self, name: str) -> tuple[str, int]:
        """Return queue and shard of a name."""
        elsewhere = _ELSEWHERE.fullmatch(name) if self._shards > 1 else None
        return (elsewhere["queue"], int(elsewhere["shard"])) if elsewhere else (name, shard_of(name, self._shards))

    # ---- what they have

    def numberings(self, queues: Sequence[str], *, strict: bool = True) -> dict[str, Offsets]:
        """Return what the stream of each queue has now. Raises as `EventLogs.numberings`, and where a shard is unreachable."""
        found: dict[str, Offsets] = {}
        for own, names in self._by_log(queues):
            of_queues = own.numberings(list(names), strict=strict)
            found |= {name: replace(of_queues[queue], queue=name) for queue, name in names.items()}
        return {queue: found[queue] for queue in queues}

    def sound_numberings(
        self, queues: Sequence[str], *, strict: bool = True
    ) -> tuple[dict[str, Offsets], dict[str, Exception]]:  # fmt: skip
        """Return what `numberings` does, and by queue why its events cannot be read. Raises as `EventLogs.sound_numberings`."""
        by_shard = self._by_shard(queues)
        foreign: dict[str, Exception] = {
            name: self._not_read(shard) for shard in by_shard.keys() - self._logs for name in by_shard[shard].values()
        }
        wanted = {shard: names for shard, names in by_shard.items() if shard in self._logs}
        answers = self._ask(
            wanted, lambda log, names: log.sound_numberings(list(names), strict=strict), all_may_fail=True
        )  # fmt: skip
        found: dict[str, Offsets] = {}
        for shard, names in wanted.items():
            if shard not in answers:
                foreign |= dict.fromkeys(names.values(), self._absent[shard].error)
                continue
            sound, odd = answers[shard]
            found |= {names[queue]: replace(numbering, queue=names[queue]) for queue, numbering in sound.items()}
            foreign |= {names[queue]: error for queue, error in odd.items()}
        return {queue: found[queue] for queue in queues if queue in found}, foreign

    def chunks(self, queue: str, epoch: int, low: int, high: int, size: int) -> Iterator[list[Entry]]:
        """Yield entries, as `EventLogs.chunks`."""
        return self._log(self.shard_of(queue)).chunks(self.queue_of(queue), epoch, low, high, size)

    def first_after(self, numbering: Offsets, ms: int) -> int:
        """Return the position before the first event of a time or later, as `EventLogs.first_after`."""
        queue, shard = self._place(numbering.queue)
        return self._log(shard).first_after(replace(numbering, queue=queue), ms)

    # ---- for commands of the callers' own

    def parts(self, queues: Collection[str]) -> Iterator[tuple[LogServer, dict[str, QueueKeys]]]:
        """Yield each shard that has some of the events, and the keys of these queues there by their names."""
        for own, names in self._by_log(queues):
            yield own, {name: own.keys.queue(queue) for queue, name in names.items()}

    def everywhere(self, queue: str) -> Iterator[tuple[LogServer, QueueKeys]]:
        """Yield each shard, and the queue's keys there."""
        for own in self._logs.values():
            yield own, own.keys.queue(queue)

    def reached(self, name: str, question: Callable[[LogServer, QueueKeys], T]) -> T | None:
        """Return the answer of the shard that has these events, as `EventLogs.reached`."""
        shard = self.shard_of(name)
        if shard in self._absent:
            return None
        try:
            return question(*self.of(name))
        except PASSING as error:
            self._lose(shard, error)
            return None

    def _by_log(self, names: Collection[str]) -> Iterator[tuple[EventLog, dict[str, str]]]:
        """Yield each log that has some of the events, with queue -> name."""
        for shard, of_shard in sorted(self._by_shard(names).items()):
            yield self._log(shard), of_shard

    def _by_shard(self, names: Collection[str]) -> dict[int, dict[str, str]]:
        """Return queue -> name of the events of each shard."""
        found: dict[int, dict[str, str]] = {}
        for name in names:
            queue, shard = self._place(name)
            found.setdefault(shard, {})[queue] = name
        return found

    def _log(self, shard: int) -> EventLog:
        if shard not in self._logs:
            raise self._not_read(shard)
        return self._logs[shard]

    def _not_read(self, shard: int) -> InvalidArgument:
        return InvalidArgument(f"these are events of shard {shard}; read here: {', '.join(map(str, self._logs))}")

    # ---- shards that cannot be reached

    def _ask(
        self, wanted: Mapping[int, U], question: Callable[[EventLog, U], T], *, all_may_fail: bool = False
    ) -> dict[int, T]:  # fmt: skip
        """Return the answers of shards, without those that cannot be reached.

        Raises:
            ServerUnreachable: and its kin, where `partial` is off, or none can be reached.
        """
        answers: dict[int, T] = {}
        for shard, what in wanted.items():
            log = self._logs[shard]
            if shard in self._absent and not self._absent[shard].is_back:
                continue
            try:
                self._check(shard, log)
                answers[shard] = question(log, what)
            except PASSING as error:
                self._lose(shard, error)
            else:
                if self._absent.pop(shard, None):
                    logger.info("the events of shard %d can be read again", shard)
        if not answers and not all_may_fail:
            raise self._absent[min(wanted)].error
        return answers

    def _lose(self, shard: int, error: Exception) -> None:
        if self._shards == 1:
            raise error
        unreachable = ShardUnreachable(f"shard {shard} of {self._shards} is unreachable: {error}")
        if not self._partial:
            raise unreachable from error
        if shard not in self._absent:
            logger.warning("%s; the events of the others are read", unreachable)
        self._absent[shard] = AbsentShard(self._logs[shard], unreachable)

    def _check(self, shard: int, log: EventLog) -> None:
        """See that the broker has that many shards, once: with fewer, some queues would be missing without a word."""
        if shard in self._checked:
            return
        mark = log.mark()
        if mark is not None:
            check_mark(mark, self._shards)
            self._on_database(shard, id_of_mark(mark))
        self._checked.add(shard)
