"""How far an ingest is behind the broker: in events, and in the age of the oldest of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_redis_plus.event_log.offsets import BEGINNING
from celery_redis_plus.events import entry_id, read_entry
from celery_redis_plus.shards.event_logs import events_at

#: A service that is told to end while the broker hangs has seven more seconds for its ingest, of ten.
TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Source:
    """Whose events are ingested.

    Attributes:
        url, prefix: of the broker.
        queues: names or patterns.
    """

    url: str
    prefix: str
    queues: str


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


def lag_of(source: Source, stored: Mapping[str, str]) -> Lag:
    """Return the lag.

    Args:
        source: whose events.
        stored: id of the last event of each queue that ingest has stored, as `Position.offset` has it.

    Raises:
        ServerUnreachable: and its kin from `errors`.
    """
    with events_at(source.url, source.prefix, partial=True, timeout_s=TIMEOUT_S) as log:
        numberings, unreadable = log.sound_numberings(log.queues(source.queues), strict=False)
        queues = list(numberings)
        # A queue without a position is one that ingest has not seen yet.
        at = {queue: entry_id(stored[queue]) if queue in stored else BEGINNING for queue in queues}
        events = {queue: numbering.total - numbering.position_of(at[queue]) for queue, numbering in numberings.items()}
        seconds = dict.fromkeys(queues, 0.0)
        for server, behind in log.parts([queue for queue in queues if events[queue]]):
            commands: list[tuple[object, ...]] = [("TIME",)]
            for queue, keys in behind.items():
                commands.append(("XRANGE", keys.events, "({}-{}".format(*at[queue]), "+", "COUNT", 1))
            now, *firsts = server.ask(commands)
            now_s = int(now[0]) + int(now[1]) / 1e6
            for queue, entries in zip(behind, firsts, strict=True):
                event = read_entry(entries[0][1]) if entries else None
                seconds[queue] = max(0.0, round(now_s - event.ts / 1e6, 3)) if event is not None else 0.0
        return Lag(events, seconds, unreadable | {f"shard {shard}": error for shard, error in log.unreachable.items()})
