"""The options of the source `celery_redis`, each once: name, type, default, unit and what it does.

Named as Spark's Kafka source names them where they mean the same.
Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from celery_redis_plus import option_types as kinds
from celery_redis_plus.events import entry_id
from celery_redis_plus.spark.option_parsing import option, parse_options, resolve_url

if TYPE_CHECKING:
    from celery_redis_plus.event_log.offsets import Id


def _position(value: object) -> Id | int:
    if value in {-1, -2, "-1", "-2"}:
        return int(str(value))
    return entry_id(str(value))


def _offsets(value: object) -> str | dict[str, Id | int]:
    if value in {"earliest", "latest"}:
        return str(value)
    return {str(queue): _position(position) for queue, position in json.loads(str(value)).items()}


def _timestamp(value: object) -> int:
    """Return ms since the epoch."""
    text = str(value)
    if text.isdigit():
        return int(text)
    parsed = datetime.fromisoformat(text)
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def _timestamps(value: object) -> dict[str, int]:
    return {str(queue): _timestamp(time) for queue, time in json.loads(str(value)).items()}


#: Units of durations, in seconds.
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _duration(value: object) -> float:
    """Return seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|[smhd])?", str(value))
    if found is None:
        raise ValueError
    return float(found[1]) * _UNITS_S[found[2] or "s"]


OFFSETS = kinds.OptionType(
    "offsets",
    'earliest, latest, or JSON such as {"celery": "1764000000000-17"}; -2 is earliest, -1 is latest',
    _offsets,
    hashable=False,
)
TIMESTAMP = kinds.OptionType("time", "ms since 1970, or ISO 8601 (UTC if it names no zone)", _timestamp)
TIMESTAMPS = kinds.OptionType(
    "times", 'JSON such as {"celery": 1764000000000, "mail": "2026-01-31"}', _timestamps, hashable=False
)
DURATION = kinds.OptionType("duration", "seconds, or a number with a unit: ms, s, m, h, d, such as 15m", _duration)
_COUNT = kinds.number(1, integer=True)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read or readStream.

    Raises:
        OptionError: an option is unknown, missing or not allowed; the message says what is.
    """

    url: str = option(kinds.text(), "", "The broker's URL, as in `broker_url`. It may hold no password: see `urlEnv`.")
    url_env: str = option(
        kinds.text(),
        "",
        "An environment variable that holds the URL, on driver and executors.",
    )
    prefix: str = option(kinds.text(), "", "The application's `global_keyprefix`, if it is not in the URL.")
    queues: str = option(
        kinds.text(),
        "*",
        "Names or patterns (`*`, `?`, `[...]`), separated by commas or as a JSON list.",
    )
    starting_offsets: Any = option(  # noqa: RUF009 - a declaration, read by from_mapping
        OFFSETS,
        None,
        "Where reading begins without a checkpoint. A batch begins at `earliest` by default, a stream at `latest`, a queue in "
        "JSON behind the event named.",
    )
    ending_offsets: Any = option(  # noqa: RUF009 - as above
        OFFSETS, "latest", "Where a batch ends: `latest`, or by queue the last event to be read."
    )
    starting_timestamp: int | None = option(
        TIMESTAMP, None, "Begin with the first event of this time; goes before `startingOffsets`."
    )
    starting_offsets_by_timestamp: Any = option(  # noqa: RUF009 - as above
        TIMESTAMPS,
        None,
        "The same by queue, before `startingTimestamp`.",
    )
    ending_timestamp: int | None = option(
        TIMESTAMP,
        None,
        "A batch ends before the first event of this time; goes before `endingOffsets`.",
    )
    max_offsets_per_trigger: int | None = option(_COUNT, None, "Read about this many events in a micro-batch.", unit="events")
    max_bytes_per_trigger: int | None = option(
        _COUNT,
        None,
        "Read about so many bytes in a micro-batch.",
        unit="bytes",
    )
    min_offsets_per_trigger: int | None = option(
        _COUNT,
        None,
        "Begin a micro-batch only when so many events wait, or `maxTriggerDelay` is over.",
        unit="events",
    )
    max_trigger_delay: float = option(DURATION, 900.0, "With `minOffsetsPerTrigger`: how long events wait for others at most.")
    min_partitions: int | None = option(_COUNT, None, "Split what is read into at least this many Spark partitions.")
    max_records_per_partition: int = option(
        _COUNT, 250_000, "Split what is read so that no Spark partition has more.", unit="events"
    )
    fail_on_data_loss: bool = option(
        kinds.flag(), True, "Fail when events were trimmed before they were read; else go on without them, count and log them."
    )
    fetch_size: int = option(kinds.number(1, 100_000, integer=True), 5000, "Events asked for in one command.", unit="events")
    reader_name: str = option(
        kinds.text(),
        "",
        "Register under this name: events stay until every registered reader has committed them, within the hard bounds.",
    )
    reader_owner: str = option(
        kinds.text(),
        "",
        "Whose reader it is: others may not use the same `readerName`.",
    )
    trim_on_commit: bool = option(
        kinds.flag(),
        False,
        "Remove events as soon as every registered reader has committed them, instead of at `event_log_maxlen` and "
        "`event_log_max_age`. `message()` then no longer finds finished messages.",
    )
    push_filters: bool = option(
        kinds.flag(),
        False,
        "Read only what the query's filters want (batch only); needs "
        "`spark.sql.python.filterPushdown.enabled=true`, and PySpark 4.1 or later.",
    )

    @classmethod
    def from_mapping(cls, given: Mapping[str, str]) -> Self:
        """Return the options that a query was given."""
        return parse_options(cls, given, "celery_redis")

    def resolved_url(self) -> str:
        """Return the URL, in the driver or in an executor."""
        return resolve_url(self.url, self.url_env)
