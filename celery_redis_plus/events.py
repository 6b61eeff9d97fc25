r"""The schema of lifecycle events: the one place that the scripts, the Spark pipeline and the docs follow.

**Where.** The events of all messages of a queue are entries of one stream, `events:{Q}`, so all events of a message are in one
stream, in the order of its changes. The queue is not repeated in the entry. `events_meta:{Q}` is a hash, see
`docs/field_descriptions.py`. The set `event_logs` has the names of all queues with events. A declaration that switches a queue's
event log on adds its name, and readers find queues only there.

**The entry's id** is `EPOCH-N`, and within an epoch N counts 1, 2, 3 ... without a gap: limits, lag and losses are then
arithmetic. The epoch is the server's time in ms when the numbering began, plus 10^13: what somebody else adds with the id
`*` gets the next number then, and not an id beyond the epoch. A script appends with

    XADD events:{Q} <epoch>-* v <value>

where `<epoch>` is the field `epoch` of `events_meta:{Q}`. Where that field is missing, the script begins the first epoch: it
sets `epoch` to the server's ms + 10^13 and `version` to 1, and adds the entry as `<epoch>-1`: Redis would begin at 0.
After a failover to a replica that lagged, numbers that readers have seen would be given again. So a script that notices another
primary begins a new epoch: it appends `EPOCH:LAST ` (the old epoch, and the last N that `XINFO STREAM` shows)
to the field `ended`, sets `epoch` to max(now ms + 10^13, old epoch + 1), and adds `<epoch>-1`.

**The entry's value.** One field, `v` (`FIELD`), for version 1 of this schema; another version N has the field `vN`, so a
reader knows each entry's version, and refuses a later one. Any other entry was written by somebody else: readers pass over
it (`read_entry`). Its value is the columns of `VALUE` (what happened, then the description), in that order, joined by one
TAB each: always 19 TABs, also behind empty columns, so that a reader can parse a thousand entries at once as one table
(which is twice as fast as a description packed for itself). An empty column means "none". Numbers are decimal. A second
field, `p` (`PAYLOAD_FIELD`), holds the stored payload as it is, in `published` entries of queues with `event_log_payload`.
In Lua:

    local NO_DESCRIPTION = '\t\t\t\t\t\t\t\t\t\t'  -- 10
    'published\t' .. ts .. '\t' .. tag .. '\t\t\t\t\t\t\t' .. description
    'claimed\t' .. ts .. '\t' .. tag .. '\t' .. claim .. '\t' .. worker .. '\t\t\t\t\t' .. NO_DESCRIPTION
    'acked\t' .. ts .. '\t' .. tag .. '\t\t\t' .. reason .. '\t' .. error .. '\t\t\t' .. NO_DESCRIPTION
    'delayed\t' .. ts .. '\t' .. tag .. '\t\t\t\t\t' .. delay .. '\t\t' .. NO_DESCRIPTION

`ts` is `TIME` in microseconds: `time[1] .. string.format('%06d', time[2])`. One call of TIME a script is enough: the order of
the events of one queue is that of their ids, never that of `ts`, which may be equal or go back.

**Texts** (worker, reason, error, target, all of the description) may hold no TAB, line feed, carriage return or backslash of
their own: the Python side passes them through `pack_text` and hands them to the scripts ready packed. What a script writes by
itself (event names, reasons, tags) needs no escaping, so Lua has none.

**The description** is the columns of `DESCRIPTION`, of which the publisher makes one text (`pack_description`); the publish
script puts it through untouched: Lua never parses an envelope. Only `published` has one; readers join by message id.

**One change, one event**, written by the script that makes the change, in the same step. Two exceptions: a message that is
published with a delay has `published` and then `delayed`; one that dies and goes to another queue has `dead_lettered` and then
`moved`, while in the target queue a new message with its own id is `published`, whose `source_id` is the old id. `TRANSITIONS`
says which changes are possible.

**Readers** register what they have committed in the hash `events_readers:{Q}`: name -> `EPOCH-N MS LOST OWNER`. That is the last
entry that is safe with them, the server's ms when they said so, how many were trimmed before they could read them, and the folder
whose reader it is. Beyond `event_log_maxlen` and `event_log_max_age` the sweep trims entries up to the least of them; the others
only beyond `event_log_hard_maxlen`, which counts them in `overrun`. Without readers the bounds decide.

**Sampling** is per message: `sampled(id, permille)` decides from the number in the id, once, when the message is published into
a queue with an event log. The 20th character of its id says so (`lua/include/tag_flags.lua`), so either all events of
a message are written or none, and a message of a queue without an event log costs the scripts one comparison.

**The index** (`event_log_index`): `event_index:{Q}:ID` holds the ids of a message's entries, `task_index:{Q}:TASK-ID` the ids of
a task's messages, each followed by a space; both expire `event_log_max_age` after the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from celery_redis_plus.errors import UnknownEventSchema

#: Version of this schema. A higher one adds columns at the end of `VALUE`, and changes `FIELD`.
SCHEMA_VERSION = 1
#: The stream entry's field that holds the packed value, for version 1.
FIELD = b"v"
#: The stream entry's optional field that holds the stored payload: envelope, line feed, body.
PAYLOAD_FIELD = b"p"

FIELD_SEPARATOR = "\t"

#: Digits of the message id that are, in hexadecimal, the server's ms when it was published (see lua/include/enqueue.lua).
ID_TIME_DIGITS = 11


class Column(NamedTuple):
    """A column of the schema.

    Attributes:
        name: as it is called in tables.
        kind: `text`, `int` (32 bits), `long` (64 bits), `us` or `ms` (a time since the epoch, stored as a number, a timestamp
            in tables), `bytes`.
        doc: what it holds, with its unit.
    """

    name: str
    kind: str
    doc: str


#: What is known without looking into the value.
PLACE = (
    Column("queue", "text", "The queue, from the stream's key."),
    Column("epoch", "long", "First half of the stream id: begin of the numbering (ms), plus 10^13."),
    Column("n", "long", "Second half of the stream id, without a gap within an epoch."),
)

#: What happened.
PACKED = (
    Column("event", "text", "What happened: one of the events above."),
    Column("ts", "us", "When, on the server's clock, µs."),
    Column("id", "text", "The message's id: its delivery tag."),
    Column("claim", "int", "How often the message was claimed; on `claimed`, and some others."),
    Column("worker", "text", "Who claimed it: node name of Celery, else the client's; on `claimed`."),
    Column("reason", "text", "[Why](#reasons); empty on `acked`: the work was done."),
    Column(
        "error",
        "text",
        "The exception of the task, `ValueError: its message`, up to 500 bytes.",
    ),
    Column("delay", "long", "How long the message waits, ms; on `delayed` and `retried`."),
    Column("target", "text", "The queue that it went to; on `moved`."),
)

#: What the message is; on `published` only.
DESCRIPTION = (
    Column("task_id", "text", "Celery's task id."),
    Column("task", "text", "The task's name."),
    Column("retries", "int", "How often Celery has retried the task before."),
    Column("root_id", "text", "Task id of the workflow's first task, unless it is `task_id`."),
    Column("parent_id", "text", "Task id of the task that sent this one."),
    Column("exchange", "text", "The exchange it was published to; empty is the default exchange."),
    Column("routing_key", "text", "The routing key."),
    Column("priority", "int", "As the publisher gave it, 0-255."),
    Column("eta", "ms", "When it shall run at the earliest."),
    Column("body_size", "long", "Bytes of the body."),
    Column("source_id", "text", "Id of the message that was replayed, moved or dead-lettered as this one."),
)

#: The columns of the value.
VALUE = (*PACKED, *DESCRIPTION)

#: What readers add.
DERIVED = (
    Column("published_at", "ms", "When the message was published."),
    Column("payload", "bytes", "The stored payload, on `published`, with `event_log_payload`."),
)

#: All columns of the table `events`, in order.
EVENT_COLUMNS = (*PLACE, *VALUE, *DERIVED)


# ------------------------------------------------------------------------------------------- the state machine

NEW, READY, DELAYED, CLAIMED, DEAD, GONE = "new", "ready", "delayed", "claimed", "dead", "gone"
_KEPT = (READY, DELAYED, CLAIMED, DEAD)


class Transition(NamedTuple):
    """A possible change: the event, the states it may start from, the state it leads to, and its description."""

    event: str
    sources: tuple[str, ...]
    target: str
    doc: str


_TRANSITIONS = (
    Transition("published", (NEW,), READY, "Stored in the queue. Carries the description."),
    Transition("delayed", (READY, DELAYED), DELAYED, "Waits for `delay` ms: published with a delay, or rescheduled."),
    Transition("promoted", (DELAYED,), READY, "Its delay is over."),
    Transition("claimed", (READY,), CLAIMED, "A worker took it."),
    Transition("recovered", (CLAIMED,), READY, "Its holder is gone: heartbeats stopped or the connection broke."),
    Transition("requeued", (CLAIMED,), READY, "Put back in its place: released, or requeued."),
    Transition(
        "retried",
        (CLAIMED,),
        DELAYED,
        "Put back to wait `delay` ms.",
    ),
    Transition("acked", _KEPT, GONE, "Settled and removed. An empty `reason` is success."),
    Transition("failed", (GONE,), GONE, "The task failed after its early ack; with the reason `retry` a new message goes on."),
    Transition("rejected", (CLAIMED,), GONE, "Rejected, and the queue keeps no dead letters."),
    Transition("expired", (READY, DELAYED), GONE, "Too old, and the queue keeps no dead letters."),
    Transition("dead_lettered", (READY, DELAYED, CLAIMED), DEAD, "Kept as a dead letter."),
    Transition("replayed", (DEAD,), READY, "A dead letter put back into its own queue."),
    Transition("moved", _KEPT, GONE, "Went to the queue `target`, where it is a new message."),
    Transition("cancelled", (READY, DELAYED, CLAIMED, DEAD), GONE, "Removed by id, or for a newer message (`replaced`)."),
    Transition("purged", _KEPT, GONE, "Removed with the queue's content, or with the queue."),
    Transition("dropped", (READY, DELAYED, DEAD), GONE, "Removed by a length or age limit; `reason` names it."),
    Transition("vanished", (READY, DELAYED, CLAIMED, DEAD), GONE, "Its hash was missing: evicted or deleted by hand."),
)
#: By event.
TRANSITIONS = {transition.event: transition for transition in _TRANSITIONS}

COMPLETED, FAILED = "COMPLETED", "FAILED"
#: Reasons of an ack whose message is `COMPLETED`.
COMPLETING = ("", "ignored", "early")
#: Reasons of the events behind which a message is delivered again, or is dead, where its delivery has failed.
FAILED_DELIVERY = ("rejected", "heartbeat_lost", "connection_lost", "delivery_limit", "retry_policy", "consumer_timeout")


def shown_state(state: str, *, event: str, reason: str, tried: bool) -> str:
    """Return how a state is shown: PENDING, DELAYED, RETRYABLE, PROCESSING, COMPLETED, RETRIED, MOVED, FAILED or DEAD.

    Args:
        state: one of the states of `TRANSITIONS`.
        event: the last event, and its `reason`.
        reason: see `event`.
        tried: whether the message was ever claimed.
    """
    if state != GONE:
        waiting = "RETRYABLE" if tried else "DELAYED"
        return {READY: "PENDING", DELAYED: waiting, CLAIMED: "PROCESSING", DEAD: "DEAD"}[state]
    if event == "moved" or (event, reason) == ("cancelled", "replaced"):
        return "MOVED"
    if event in {"acked", "failed"} and reason == "retry":
        return "RETRIED"
    return COMPLETED if event == "acked" and reason in COMPLETING else FAILED


# ------------------------------------------------------------------------------------------- encoding

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_UNESCAPES = {escape[1]: plain for plain, escape in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(.)")
#: The field of a later version of the schema.
_LATER_FIELD = re.compile(rb"v\d+")
#: Before this time events happen, µs since the epoch: the end of the year 9999, the last that Python's `datetime` has.
END_US = 253_402_300_800_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event as Python sees it; the fields are the columns of `VALUE`. None is an empty column."""

    event: str
    ts: int
    id: str
    claim: int | None = None
    worker: str | None = None
    reason: str | None = None
    error: str | None = None
    delay: int | None = None
    target: str | None = None
    task_id: str | None = None
    task: str | None = None
    retries: int | None = None
    root_id: str | None = None
    parent_id: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    priority: int | None = None
    eta: int | None = None
    body_size: int | None = None
    source_id: str | None = None

    @property
    def published_at(self) -> int:
        """When the message was published, server ms."""
        return published_at(self.id)


assert [field.name for field in fields(Event)] == [column.name for column in VALUE]  # noqa: S101


def pack_text(text: str) -> str:
    """Return `text` with what the encoding uses escaped by backslashes: what every text passed to a script goes through."""
    return text.translate(_ESCAPE_TABLE)


def unpack_text(text: str) -> str:
    """Return the text that `pack_text` made `text` of."""
    return _ESCAPE.sub(lambda match: _UNESCAPES.get(match[1], match[0]), text) if "\\" in text else text


def pack_description(**values: Any) -> str:
    """Return the description that a publisher hands to the publish script; the arguments are columns of `DESCRIPTION`.

    `root_id` is left out where it equals `task_id`: it is 36 bytes, and most tasks are their own root.
    """
    if values.get("root_id") == values.get("task_id"):
        values["root_id"] = None
    packed = [_packed(values.pop(column.name, None)) for column in DESCRIPTION]
    if values:
        raise TypeError(f"a description has no column {', '.join(values)}")
    return FIELD_SEPARATOR.join(packed)


def encode(event: Event) -> bytes:
    """Return the value of the stream entry's field `FIELD`. For tests and synthetic data: live events come from the scripts."""
    packed = [_packed(getattr(event, column.name)) for column in PACKED]
    packed.append(pack_description(**{column.name: getattr(event, column.name) for column in DESCRIPTION}))
    return FIELD_SEPARATOR.join(packed).encode("utf-8", "surrogateescape")


def decode(value: bytes, field: bytes = FIELD) -> Event:
    """Return the event in a stream entry.

    Raises:
        UnknownEventSchema: the entry's field is not `FIELD`, or the value does not have this version's columns.
    """
    texts = value.decode("utf-8", "surrogateescape").split(FIELD_SEPARATOR)
    if field != FIELD or len(texts) != len(VALUE):
        raise UnknownEventSchema(
            f"an event in field {field!r} with {len(texts)} columns; this release reads version {SCHEMA_VERSION}: "
            f"field {FIELD!r} with {len(VALUE)} columns. Upgrade celery-redis-plus where it reads events."
        )
    values: dict[str, Any] = {column.name: _unpacked(text, column) for column, text in zip(VALUE, texts, strict=True)}
    if values["root_id"] is None:
        values["root_id"] = values["task_id"]
    return Event(**values)


def read_entry(fields: Sequence[bytes]) -> Event | None:
    """Return the event in a stream entry; None where it is none, because somebody else wrote it.

    Args:
        fields: the entry's fields and values in one list.

    Raises:
        UnknownEventSchema: a later release wrote it.
    """
    if fields[0] != FIELD:
        if _LATER_FIELD.fullmatch(fields[0]):
            decode(fields[1], fields[0])
        return None
    try:
        event = decode(fields[1])
    except UnknownEventSchema:
        return None
    return event if event.event in TRANSITIONS and event.id and _is_time(event.ts) else None


def _is_time(us: int | None) -> bool:
    # A column may be empty that has to be there.
    return us is not None and 0 <= us < END_US


def _packed(value: str | int | None) -> str:
    if value is None:
        return ""
    return pack_text(value) if isinstance(value, str) else str(value)


def _unpacked(text: str, column: Column) -> str | int | None:
    if not text:
        return None
    return unpack_text(text) if column.kind == "text" else _number(text, column)


def _number(text: str, column: Column) -> int | None:
    """Return the number in a column; what is none, or has more bits than the column, is as empty: 0 for a time that has to be."""
    try:
        number = int(text)
    except ValueError:
        return 0 if column.name == "ts" else None
    if column.kind == "ms":
        return number if 0 <= number * 1000 < END_US else None
    bits = 32 if column.kind == "int" else 64
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


# ------------------------------------------------------------------------------------------- ids


def published_at(message_id: str) -> int:
    """Return when the message was published, server ms.

    Raises:
        ValueError: `message_id` is none of ours.
    """
    return int(message_id[:ID_TIME_DIGITS], 16)


def sampled(message_id: str, permille: int) -> bool:
    """Return whether a message's events are written at a sample rate of `permille` thousandths.

    In Lua: `tonumber(string.sub(tag, 12, 19), 16) * 919 % 1000 < permille`. Those digits are the queue's publish counter; 919
    and 1000 have no common factor, so any 1000 messages in a row have exactly `permille` sampled ones, evenly spread.
    """
    return int(message_id[ID_TIME_DIGITS : ID_TIME_DIGITS + 8], 16) * 919 % 1000 < permille


def entry_id(stream_id: bytes | str) -> tuple[int, int]:
    """Return (epoch, n) of a stream id, in which tuples sort as ids do."""
    epoch, _, n = (stream_id.decode() if isinstance(stream_id, bytes) else stream_id).partition("-")
    return int(epoch), int(n)


def ended_epochs(text: str) -> Sequence[tuple[int, int]]:
    """Return (epoch, last n) of the epochs in the field `ended` of `events_meta:{Q}`, oldest first."""
    pairs = (pair.partition(":") for pair in text.split())
    return [(int(epoch), int(last)) for epoch, _, last in pairs]
