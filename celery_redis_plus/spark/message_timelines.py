"""Traces each message through its events: a whole partition at once, in arrays.

Spark's window functions do the same row by row, and take ten times as long as reading the events; arrays take about as long as
reading. Events are sorted by message, so that each event stands next to the one before it. A message becomes ready right before
its claim, and its claim is right before its end (the state machine in `events.py`): waits and runs are differences of neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from celery_redis_plus.events import DEAD, DELAYED, DESCRIPTION, GONE, READY, TRANSITIONS, shown_state
from celery_redis_plus.spark.arrow_columns import as_table, ints, microseconds
from celery_redis_plus.spark.schema import MOMENT, TYPES, arrow, ddl

if TYPE_CHECKING:
    from numpy.typing import NDArray

DESCRIPTION_TYPES = {column.name: TYPES[column.kind] for column in DESCRIPTION}

#: The columns of the events that are read.
EVENT_COLUMNS_READ = (
    "queue",
    "epoch",
    "n",
    "event",
    "ts",
    "id",
    "worker",
    "reason",
    "error",
    "delay",
    "target",
    "published_at",
    "date",
    *DESCRIPTION_TYPES,
)

#: Columns of a message's row.
MESSAGE_COLUMNS = {
    "date": "date",
    "queue": "string",
    "id": "string",
    "state": "string",
    "last_event": "string",
    "reason": "string",
    "error": "string",
    **DESCRIPTION_TYPES,
    "worker": "string",
    "target": "string",
    "attempts": "int",
    "events": "int",
    "complete": "boolean",
    "published_at": "timestamp",
    "first_delivery": "timestamp",
    "last_delivery": "timestamp",
    "last_at": "timestamp",
    "finished_at": "timestamp",
    "wait_s": "double",
    "run_s": "double",
    "total_s": "double",
    "late_s": "double",
}
MESSAGE_DDL = ddl(MESSAGE_COLUMNS)
MESSAGE_SCHEMA = arrow(MESSAGE_COLUMNS)

_EVENTS = list(TRANSITIONS)
# The last element stands for "no event before", and for an event of a later release.
_LEADS_TO = np.array([change.target for change in TRANSITIONS.values()] + ["new"])
#: Whether an event (row) may follow another one (column), which is the last column for none.
_LEGAL = np.array([[state in change.sources for state in _LEADS_TO] for change in TRANSITIONS.values()])
_ACKED, _CLAIMED, _DEAD_LETTERED, _DELAYED, _FAILED, _MOVED, _PUBLISHED = (
    _EVENTS.index(event) for event in ("acked", "claimed", "dead_lettered", "delayed", "failed", "moved", "published")
)
#: A hundred years.
_LONGEST_MS = 100 * 366 * 86_400_000
#: Reasons that change the shown state; no other reason does.
_STATE_REASONS = ["retry", "ignored", "early", "replaced"]


class MessageTimelines:
    """The events of a partition that has all events of its messages, sorted by message and number.

    Attributes:
        starts, ends: of each message, the first and the last of its rows.
    """

    def __init__(self, table: pa.Table) -> None:
        parts = [table.column("queue"), table.column("id")]
        if table.column("published_at").null_count:
            # An id that is none of ours tells no day, and its events are divided by theirs.
            parts.append(table.column("date").cast(pa.string()))
        names = pc.binary_join_element_wise(*parts, "\n")
        codes = names.combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((ints(table.column("n")), ints(table.column("epoch")), codes))
        self.table = table.take(order).combine_chunks()
        codes = codes[order]
        first: NDArray[np.bool_] = np.ones(len(codes), dtype=bool)
        first[1:] = codes[1:] != codes[:-1]
        self.first = first
        self.starts = np.flatnonzero(first)
        self.ends: NDArray[np.int64] = np.append(self.starts[1:], len(codes)) - 1
        self.place = np.arange(len(codes))
        known = pc.index_in(self.table.column("event"), pa.array(_EVENTS))
        self.event = ints(pc.fill_null(known, -1))
        self.ts = microseconds(self.table.column("ts"))
        before = np.roll(self.event, 1)
        before[first] = -1
        self.before = before
        # A server's clock may have gone back, also within a wait.
        elapsed_s = np.maximum(np.diff(self.ts, prepend=self.ts[0]), 0) / 1e6
        self.claims = self.event == _CLAIMED
        self.wait_s, self.waited = elapsed_s, self.claims & ~first
        self.run_s, self.ran = elapsed_s, before == _CLAIMED

    def changes(self) -> dict[str, Any]:
        """Return the columns that `minute_aggregates.partial_minutes` counts."""
        column = self.table.column
        ready = (_LEADS_TO == READY).astype(np.int32)
        message = np.cumsum(self.first) - 1
        # A task that was acked early fails behind its ack, which follows the claim.
        fails_late = (self.event == _FAILED) & (self.before == _ACKED) & np.roll(self.ran, 1)
        return {
            "queue": column("queue"),
            "event": column("event"),
            "reason": column("reason"),
            "ts": self.ts,
            "task": self._first_valid("task").take(pa.array(message)),
            # The worker that claimed a message is the one with which the claim ended.
            "worker": column("worker").take(pa.array(self.place - np.where(fails_late, 2, self.ran))),
            "wait_s": np.where(self.waited, self.wait_s, np.nan),
            "run_s": np.where(self.ran, self.run_s, np.nan),
            "ready_change": ready[self.event] - ready[self.before],
        }

    def may_go_on(self, early_since_us: int) -> NDArray[np.bool_]:
        """Return of each message whether it may have more events: it is not gone, or was acked before the work began at
        `early_since_us` (µs) or later, and may still fail.
        """
        gone = _LEADS_TO[self.event[self.ends]] == GONE
        reason = self.table.column("reason").take(pa.array(self.ends))
        early = np.asarray(pc.fill_null(pc.equal(reason, "early"), False).to_numpy())
        working: NDArray[np.bool_] = ~gone | (early & (self.ts[self.ends] >= early_since_us))
        return working

    def due_us(self) -> NDArray[np.int64]:
        """Return when each message that waits is due, µs; 0 of the others, and where it is not known."""
        waits = (_LEADS_TO[self.event[self.ends]] == DELAYED) & (self._delays_ms(self.ends) > 0)
        return np.where(waits, self._ends_of_delays(self.ends), 0)

    def illegal(self) -> NDArray[np.bool_]:
        """Return which events cannot follow the one before them (`events.TRANSITIONS`); those of a later release may."""
        legal: NDArray[np.bool_] = _LEGAL[self.event, self.before]
        return ~legal & (self.event >= 0) & ((self.before >= 0) | self.first)

    def messages(self) -> pa.Table:
        """Return one row a message: its description, its last state, its waits and runs."""
        return as_table(self._columns(), MESSAGE_SCHEMA)

    def _columns(self) -> dict[str, Any]:
        last, first = pa.array(self.ends), pa.array(self.starts)
        column = self.table.column
        attempts = np.add.reduceat(self.claims.astype(np.int32), self.starts)
        tried = attempts > 0
        never = np.iinfo(np.int64).max
        first_delivery = np.minimum.reduceat(np.where(self.claims, self.ts, never), self.starts)
        last_delivery = np.maximum.reduceat(np.where(self.claims, self.ts, -1), self.starts)
        last_at = self.ts[self.ends]
        finished = np.isin(_LEADS_TO[self.event[self.ends]], (GONE, DEAD))
        published_at = column("published_at").take(first)
        described = {name: self._first_valid(name) for name in DESCRIPTION_TYPES}
        described["eta"] = pc.coalesce(self._new_times(), described["eta"], self._ends_of_countdowns())
        # A dead letter that went to another queue tells why it died.
        moved_dead = (self.event[self.ends] == _MOVED) & (self.before[self.ends] == _DEAD_LETTERED)
        reason = column("reason").take(pa.array(self.ends - moved_dead))
        late = _seconds_between(described["eta"], first_delivery, tried)
        # A worker gets a task that has expired, to revoke it, also before its eta.
        revoked = pc.and_(pc.is_in(reason, pa.array(["expired", "revoked"])), pc.less(late, 0.0))
        return {
            "date": column("date").take(first),
            "queue": column("queue").take(first),
            "id": column("id").take(first),
            "state": self._shown(tried),
            "last_event": column("event").take(last),
            "reason": reason,
            "error": self._last_valid(column("error").is_valid().to_numpy(), "error"),
            **described,
            "worker": self._last_valid(self.claims, "worker"),
            "target": column("target").take(last),
            "attempts": pa.array(attempts),
            "events": pa.array((self.ends - self.starts + 1).astype(np.int32)),
            "complete": pa.array(np.logical_or.reduceat(self.event == _PUBLISHED, self.starts)),
            "published_at": published_at,
            "first_delivery": _times(first_delivery, tried),
            "last_delivery": _times(last_delivery, tried),
            "last_at": _times(last_at, last_at >= 0),
            "finished_at": _times(last_at, finished),
            "wait_s": self._total(self.wait_s, self.waited),
            "run_s": self._total(self.run_s, self.ran),
            "total_s": pc.max_element_wise(_seconds_between(published_at, last_at, finished), 0.0, skip_nulls=False),
            "late_s": pc.if_else(revoked, None, late),
        }

    def _total(self, seconds: NDArray[np.float64], counted: NDArray[np.bool_]) -> pa.Array:
        totals = np.add.reduceat(np.where(counted, seconds, 0.0), self.starts)
        return pa.array(totals, mask=~np.logical_or.reduceat(counted, self.starts))

    def _new_times(self) -> pa.Array:
        """Return when each message was due that got another time before its first delivery; null of the others."""
        claims = np.cumsum(self.claims)
        earlier = (claims - self.claims)[self.starts]
        undelivered = claims == np.repeat(earlier, self.ends - self.starts + 1)
        rescheduled = ints(pc.fill_null(pc.equal(self.table.column("reason"), "rescheduled"), False)).astype(np.bool_)
        found = np.maximum.reduceat(np.where(rescheduled & undelivered, self.place, -1), self.starts)
        return _times(self._ends_of_delays(np.maximum(found, 0)), found >= 0)

    def _ends_of_countdowns(self) -> pa.Array:
        """Return when each message with a countdown was due: it counts on the server, and the event after its publish has it."""
        second = np.minimum(self.starts + 1, self.ends)
        return _times(self._ends_of_delays(second), (self.event[second] == _DELAYED) & (self.before[second] == _PUBLISHED))

    def _ends_of_delays(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the delays of events end, µs."""
        # A delay of a thousand years is none that a number holds.
        return self.ts[places] + np.minimum(self._delays_ms(places), _LONGEST_MS) * 1000

    def _delays_ms(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return ints(pc.fill_null(self.table.column("delay").take(pa.array(places)), 0))

    def _first_valid(self, name: str) -> pa.Array:
        """Return the first value of a column of each message that is not null."""
        column = self.table.column(name)
        beyond = len(self.place)
        found = np.minimum.reduceat(np.where(column.is_valid().to_numpy(), self.place, beyond), self.starts)
        return column.take(pa.array(found, mask=found == beyond))

    def _last_valid(self, wanted: NDArray[np.bool_], name: str) -> pa.Array:
        found = np.maximum.reduceat(np.where(wanted, self.place, -1), self.starts)
        return self.table.column(name).take(pa.array(found, mask=found < 0))

    def _shown(self, tried: NDArray[np.bool_]) -> pa.Array:
        """Return `events.shown_state` of each message, asked once for each case."""
        reason = self.table.column("reason").take(pa.array(self.ends))
        word = ints(pc.fill_null(pc.index_in(reason, pa.array(_STATE_REASONS)), -1))
        word = np.where(reason.is_null().to_numpy(), len(_STATE_REASONS), word)
        cases, case = np.unique(np.stack([self.event[self.ends], word, tried]), axis=1, return_inverse=True)
        names = [_shown_case(int(event), int(word), bool(was_tried)) for event, word, was_tried in cases.T]
        return pa.array(names, pa.string()).take(pa.array(case.reshape(-1)))


def _shown_case(event: int, word: int, tried: bool) -> str | None:
    if event < 0:
        return None
    reason = [*_STATE_REASONS, "", "other"][word]
    return shown_state(str(_LEADS_TO[event]), event=_EVENTS[event], reason=reason, tried=tried)


def _times(microseconds: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    return pa.array(microseconds, mask=~known).cast(MOMENT)


def _seconds_between(start: Any, end: NDArray[np.int64], known: NDArray[np.bool_]) -> pa.Array:
    """Return seconds from `start`, a column of times, to `end`, µs; null where one is not known."""
    valid = start.is_valid().to_numpy() if not isinstance(start, pa.Array) else start.is_valid().to_numpy(zero_copy_only=False)
    begin = microseconds(start)
    return pa.array((end - begin) / 1e6, mask=~(known & valid))
