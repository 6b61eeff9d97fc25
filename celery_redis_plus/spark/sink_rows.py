"""Makes a row of the sink `celery_task` a task: its id, its body, its headers and properties."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS, eta_to_ms, moment_to_ms
from celery_redis_plus.broker.arguments.priority import MAX_PRIORITY, check_priority
from celery_redis_plus.errors import InvalidArgument, InvalidEta, InvalidPriority
from celery_redis_plus.spark.option_parsing import public_name

if TYPE_CHECKING:
    from celery_redis_plus.spark.sink_options import SinkOptions

#: What task ids are derived under.
NAMESPACE = uuid.UUID("8c5a2f4e-52c1-5d0e-9c55-4f0f1f1a6c11")
#: The fourth part of a body in Celery's message protocol 2.
#: Source: https://docs.celeryq.dev/en/stable/internals/protocol.html
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_SECONDS = "a number of seconds from now, up to a hundred years"
_TIME = "a time, or a text of one in ISO 8601"
_LONGEST_S = MAX_DELAY_MS // 1000


def task_message(
    values: Mapping[str, Any], options: SinkOptions, utc: Collection[str] = ()
) -> tuple[str, str, str, dict[str, Any], dict[str, Any]]:
    """Return (queue, task id, body, headers, properties) of a row's task, in Celery's message protocol 2.

    Args:
        values: of a row, by column.
        options: say what its columns mean.
        utc: columns whose times have no zone.

    Raises:
        InvalidArgument: a column holds what is not allowed; the error names it, its option, the row's id, and what is.
    """
    row = _Row(values, options, utc)
    name, queue = row.text("task_column", least=1) or options.task, row.text("queue_column", least=1) or options.queue
    if values[options.id_column] is None:
        raise row.refused("id_column", "what identifies the row")
    task_id = str(uuid.uuid5(NAMESPACE, f"{options.sink_name or name}:{_identity(values[options.id_column])}"))
    args, kwargs = row.arguments("args_column", list), row.arguments("kwargs_column", dict)
    headers = {
        # The sink's own deduplication is that by which a row is sent once.
        **{key: of for key, of in row.arguments("headers_column", dict).items() if not key.startswith("x-deduplication-")},
        "lang": "py",
        "task": name,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": row.text("group_column"),
        "retries": 0,
        "timelimit": [None, None],
        "eta": row.seconds("countdown_column", _SECONDS) if options.countdown_column else row.moment("eta_column", _TIME),
        "expires": row.expires(),
        "argsrepr": f"{args!r:.200}",
        "kwargsrepr": f"{kwargs!r:.200}",
        "origin": f"spark{os.getpid()}@{socket.gethostname()}",
    }
    properties: dict[str, Any] = {"correlation_id": task_id, "reply_to": ""}
    if (priority := row.priority()) is not None:
        properties["priority"] = priority
    return queue, task_id, json.dumps([args, kwargs, _EMBED], default=_plain), headers, properties


class _Row:
    """The values of a row, by the option that names their column; each method raises InvalidArgument as `refused` makes it."""

    def __init__(self, values: Mapping[str, Any], options: SinkOptions, utc: Collection[str]) -> None:
        self._values = values
        self._options = options
        self._utc = utc

    def of(self, option: str) -> Any:
        """Return the value; None where no column is named."""
        column = getattr(self._options, option)
        return self._values[column] if column else None

    def refused(self, option: str, allowed: str) -> InvalidArgument:
        """Return the error for a value."""
        identity = self._values[self._options.id_column]
        return InvalidArgument(
            f"the row of id {identity!r:.100}: column {getattr(self._options, option)!r} (option {public_name(option)}) has "
            f"{self.of(option)!r:.100}; allowed: {allowed}"
        )

    def text(self, option: str, *, least: int = 0) -> str | None:
        """Return a text of so many characters at least; None where no column is named, or may be where none are wanted."""
        value = self.of(option)
        if not getattr(self._options, option) or (value is None and not least):
            return None
        if not isinstance(value, str) or len(value) < least:
            raise self.refused(option, "a text that is not empty" if least else "a text")
        return value

    def arguments(self, option: str, kind: type) -> Any:
        """Return a list or a dict; an empty one for none."""
        value = self.of(option)
        if value is None:
            return kind()
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, kind):
            raise self.refused(option, f"a {kind.__name__}, or JSON of one")
        return value

    def priority(self) -> int | None:
        """Return the priority; None for none."""
        value = self.of("priority_column")
        whole = int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value
        try:
            return None if whole is None else check_priority(whole)
        except InvalidPriority:
            raise self.refused("priority_column", f"a whole number from 0 to {MAX_PRIORITY}") from None

    def expires(self) -> str | None:
        """Return the time after which the task does not run; None for none."""
        allowed = f"{_TIME}, or {_SECONDS}"
        is_number = _is_number(self.of("expires_column"))
        return self.seconds("expires_column", allowed) if is_number else self.moment("expires_column", allowed)

    def seconds(self, option: str, allowed: str) -> str | None:
        """Return the time in so many seconds, as ISO 8601 in UTC; None for none. One that has passed is as good as now."""
        value = self.of(option)
        if value is None:
            return None
        # A comparison with NaN fails.
        if not _is_number(value) or not abs(value) <= _LONGEST_S:
            raise self.refused(option, allowed)
        return (datetime.now(UTC) + timedelta(seconds=max(0.0, float(value)))).isoformat()

    def moment(self, option: str, allowed: str) -> str | None:
        """Return a time as ISO 8601 in UTC; None for none, and for an empty text. A text without a zone is UTC."""
        value = self.of(option)
        if value is None or value == "":
            return None
        if not isinstance(value, str | datetime):
            raise self.refused(option, allowed)
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            # A time with a zone has one; of the others, Spark gives Python those of TIMESTAMP in the machine's zone.
            is_utc = isinstance(value, str) or getattr(self._options, option) in self._utc
            moment = moment.replace(tzinfo=UTC) if is_utc and moment.tzinfo is None else moment.astimezone(UTC)
            (eta_to_ms if option == "eta_column" else moment_to_ms)(moment, naive_is_utc=True)
        except (ValueError, OverflowError, InvalidEta):
            raise self.refused(option, f"{allowed}, from 1970 on") from None
        return moment.isoformat()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _identity(value: Any) -> str:
    """Return a row's id, which is the same in each session: Spark gives times in the session's zone."""
    return _plain(value) if isinstance(value, datetime) else str(value)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        raise InvalidArgument("arguments hold bytes, which JSON has no form for; encode the column first, as base64 for example")
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
