"""Whether and how the lifecycle events of a queue's messages are written: the field `event_log` of the queue's record.

The scripts read it (`lua/include/log_event.lua`), so what one process sets holds for all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.keys import decode_name, encode_name

if TYPE_CHECKING:
    from celery_redis_plus.keys import QueueKeys
    from celery_redis_plus.options import Options


@dataclass(frozen=True, slots=True)
class EventLogSettings:
    """How events are written; see the options `event_log_*`."""

    #: Whether queues have events that do not say so themselves (`x-event-log`); None leaves those as they are.
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
        """Return the record's field for one queue: JSON, which the scripts decode, with the keys, which no script spells."""
        fields = {
            "permille": self.permille,
            "index": self.index,
            "payload": self.payload,
            "maxlen": self.maxlen,
            "hard_maxlen": self.hard_maxlen,
            "age": self.max_age_ms,
            "chosen": f",{','.join(self.events)}," if self.events else "*",
            "events": decode_name(keys.events),
            "meta": decode_name(keys.events_meta),
            "readers": decode_name(keys.events_readers),
            "event_index": decode_name(keys.event_index),
            "task_index": decode_name(keys.task_index),
        }
        return encode_name(json.dumps(fields, ensure_ascii=False))
