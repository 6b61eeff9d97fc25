"""How far an ingest is behind the broker: in events, and in the age of the oldest of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_redis_plus.event_log import readers
from celery_redis_plus.events import read_entry
from celery_redis_plus.shards.event_logs import events_at


@dataclass(frozen=True)
class Source:
    """Whose events are ingested.

    Attributes:
        url, prefix: of the broker.
        queues: names or patterns.
        reader: the name under which ingest registers.
    """

    url: str
    prefix: str
    queues: str
    reader: str


@dataclass(frozen=True)
class Lag:
    """What ingest has not stored yet, by queue.

    Attributes:
        events: how many.
        seconds: how old the first of them is; 0 where there are none.
        unreadable: why the events of other queues, or of a shard, cannot be read.
    """

    events: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    unreadable: Mapping[str, Exception] = field(default_factory=dict)


def lag_of(source: Source) -> Lag:
    """Return the lag.

    Raises:
        ServerUnreachable: and its kin from `errors`.
    """
    with events_at(source.url, source.prefix, partial=True, timeout_s=5.0) as log:
        numberings, unreadable = log.sound_numberings(log.queues(source.queues), strict=False)
        queues = list(numberings)
        own = {reader.queue: reader for reader in readers.readers(log, queues) if reader.name == source.reader}
        # A queue without the reader is one that ingest has not seen yet.
        events = {queue: own[queue].behind if queue in own else numberings[queue].total for queue in queues}
        seconds = dict.fromkeys(queues, 0.0)
        for server, behind in log.parts([queue for queue in queues if events[queue]]):
            commands: list[tuple[object, ...]] = [("TIME",)]
            for queue, keys in behind.items():
                start = "({}-{}".format(*own[queue].position) if queue in own else "-"
                commands.append(("XRANGE", keys.events, start, "+", "COUNT", 1))
            now, *firsts = server.ask(commands)
            now_s = int(now[0]) + int(now[1]) / 1e6
            for queue, entries in zip(behind, firsts, strict=True):
                event = read_entry(entries[0][1]) if entries else None
                seconds[queue] = max(0.0, round(now_s - event.ts / 1e6, 3)) if event is not None else 0.0
        return Lag(events, seconds, unreadable | {f"shard {shard}": error for shard, error in log.unreachable.items()})
