"""Whether and how the lifecycle events of a queue's messages are written: the field `event_log` of the queue's record.

The scripts read it (`lua/include/log_event.lua`), so what one process sets holds for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redis_plus.keys import QueueKeys
    from celery_redis_plus.options import Options


@dataclass(frozen=True, slots=True)
class EventLogSettings:
    """How events are written; see the options `event_log_*`."""

    #: Whether queues are archived that do not say so themselves (`x-archive`); None leaves those as they are.
    wanted: bool | None = None
    #: The share of messages whose events are written, in thousandths.
    permille: int = 1000
    #: The events that are written; empty is all.
    events: tuple[str, ...] = ()
    payload: bool = False
    index: bool = False
    maxlen: int = 100_000
    hard_maxlen: int = 1_000_000
    max_age_ms: int = 604_800_000

    @classmethod
    def of(cls, options: Options) -> EventLogSettings:
        """Return what the options say."""
        return cls(
            options.event_log,
            round(options.event_log_sample * 1000),
            options.event_log_events or (),
            options.event_log_payload,
            options.event_log_index,
            options.event_log_maxlen,
            max(options.event_log_hard_maxlen, options.event_log_maxlen),
            int(options.event_log_max_age * 1000),
        )

    def record(self, keys: QueueKeys) -> bytes:
        """Return the record's field for one queue.

        Numbers: permille, index, payload, maxlen, hard maxlen, age in ms, the lengths of five keys; then the events as
        `,one,two,` or `*`; then the keys, of which no script has to spell one.
        """
        named = (keys.events, keys.events_meta, keys.events_readers, keys.event_index, keys.task_index)
        bounds = (self.maxlen, self.hard_maxlen, self.max_age_ms)
        numbers = (self.permille, int(self.index), int(self.payload), *bounds, *map(len, named))
        chosen = f",{','.join(self.events)}," if self.events else "*"
        return f"{' '.join(map(str, numbers))} {chosen} ".encode() + b"".join(named)
