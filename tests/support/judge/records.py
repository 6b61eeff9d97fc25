"""The record of a run: what each process did, in the order of a clock that no test sets."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

#: What a publisher knows. `confirmed`, `refused` or `unknown` follows each `publish`, unless its process died in between.
PUBLISH, CONFIRMED, REFUSED, UNKNOWN = "publish", "confirmed", "refused", "unknown"
#: What a consumer got, and what it did with that. `lost`: it was told that others have the message.
DELIVERED, ACKED, REJECTED, REQUEUED, RELEASED, LOST = "delivered", "acked", "rejected", "requeued", "released", "lost"
SETTLEMENTS = (ACKED, REJECTED, REQUEUED, RELEASED, LOST)
#: The work.
START, END = "start", "end"
#: What became of processes and sessions. `silent`: frozen or cut off, until `heard`.
#: `stopped`: asked to end; `gone`: it has ended.
KILLED, STOPPED, GONE, SILENT, HEARD, DISCONNECTED = "killed", "stopped", "gone", "silent", "heard", "disconnected"
#: A pool process was killed, `detail["pid"]`; its worker lives.
CHILD_KILLED = "child_killed"
#: The server: it has the data that it had at `detail["since"]` again; its clock now differs by `detail["offset_s"]`.
ROLLED_BACK, CLOCK_STEPPED = "rolled_back", "clock_stepped"
#: The server takes writes again, which it had refused since `detail["since"]`.
WRITABLE = "writable"
#: Consumers and queues. `drained`: the queue or exchange was seen empty, all is settled.
DECLARED, CONSUMING, CANCELLED, DEPTH, DRAINED, LEFT = "declared", "consuming", "cancelled", "depth", "drained", "left"
#: A queue was bound to the exchange `detail["exchange"]`, of the type `detail["type"]`, with the key `detail["key"]`.
BOUND = "bound"


#: Seconds between what a process notes and what the server does.
ON_ITS_WAY_S = 1.0
#: Seconds between what two threads of a process do, and note.
NOTED_S = 0.05
#: Seconds until a server goes by the new time: libfaketime reads it once a second.
STEP_NOTICED_S = 3.0


@dataclass(frozen=True, slots=True)
class Record:
    """One line.

    Attributes:
        kind: one of the words above.
        tick: the machine's monotonic clock, in seconds.
        process: the id of a consumer's process, a worker's main one.
        name: of the message, as the application knows it.
        queue: a queue; of a broadcast's publish, and where it was drained, the exchange.
        tag: of the message, as the server knows it.
        claim: how often the server had given the message out.
        session: the consumer's session, one life of its connections.
        time: the wall clock, seconds since the epoch.
        detail: what else there is, by kind.
    """

    kind: str
    tick: float
    process: int = 0
    name: str = ""
    queue: str = ""
    tag: str = ""
    claim: int = 0
    session: str = ""
    redelivered: bool = False
    time: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return it as a line of a file; `read_line` reads it."""
        return (
            json.dumps({key: value for key, value in asdict(self).items() if value or key in {"kind", "tick"}}).encode() + b"\n"
        )

    def __str__(self) -> str:
        parts = [f"{self.tick:.4f}", self.kind]
        for one in fields(self)[2:]:
            value = getattr(self, one.name)
            if value and one.name != "time":
                parts.append(f"{one.name}={value}")
        return " ".join(parts)


def read_line(line: bytes) -> Record:
    """Return the record of a line."""
    return Record(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Holding:
    """One delivery, and the record by which it ended; None where it did not."""

    delivery: Record
    end: Record | None

    @property
    def until(self) -> float:
        return float("inf") if self.end is None else self.end.tick


class Rollback(NamedTuple):
    """The server lost, at the tick `at`, what it had done since `since`; perhaps not what a replica had confirmed."""

    since: float
    at: float
    spares_replicated: bool = False

    def undoes(self, began: float, confirmed: float, *, replicated: bool) -> bool:
        """Return whether it may have undone what a client asked for, or was given, and told, or was told, at these ticks."""
        is_before = began <= self.at + ON_ITS_WAY_S
        return not (replicated and self.spares_replicated) and is_before and confirmed >= self.since - ON_ITS_WAY_S


class History:
    """All records of a run, in their order, and what can be looked up in them."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = sorted(records, key=lambda record: record.tick)
        self._by_kinds: dict[tuple[str, ...], list[Record]] = {}

    @classmethod
    def read(cls, directory: Path, more: Iterable[Record] = ()) -> History:
        """Read the files of all processes; a line that a killed one did not end is left out. `more` are records beside them."""
        found = list(more)
        for path in directory.iterdir():
            found += [read_line(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return cls(found)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def of(self, *kinds: str) -> list[Record]:
        """Return the records of these kinds, in their order."""
        if kinds not in self._by_kinds:
            self._by_kinds[kinds] = [record for record in self.records if record.kind in kinds]
        return self._by_kinds[kinds]

    @cached_property
    def by_name(self) -> dict[str, list[Record]]:
        """Message name -> its records."""
        return self._grouped("name")

    @cached_property
    def by_tag(self) -> dict[str, list[Record]]:
        """Tag -> its records."""
        return self._grouped("tag")

    @cached_property
    def by_process(self) -> dict[int, list[Record]]:
        """Process -> what became of it and of its sessions."""
        found: dict[int, list[Record]] = defaultdict(list)
        for record in self.of(KILLED, STOPPED, GONE, SILENT, HEARD, DISCONNECTED, CANCELLED):
            found[record.process].append(record)
        return found

    def fates(self, process: int, *kinds: str, since: float = 0.0, until: float = float("inf")) -> list[Record]:
        """Return what became of a process within these ticks."""
        return [fate for fate in self.by_process.get(process, ()) if fate.kind in kinds and since <= fate.tick <= until]

    @cached_property
    def rollbacks(self) -> list[Rollback]:
        """When the server lost data."""
        return [
            Rollback(record.detail["since"], record.tick, record.detail.get("spares_replicated", False))
            for record in self.of(ROLLED_BACK)
        ]

    @cached_property
    def refusals(self) -> list[tuple[float, float]]:
        """From when to when the server refused writes, in ticks."""
        return [(record.detail["since"], record.tick) for record in self.of(WRITABLE)]

    def rolled_back_between(self, first: float, second: float) -> bool:
        """Return whether the server lost data between these ticks."""
        return any(first - ON_ITS_WAY_S <= rollback.at <= second for rollback in self.rollbacks)

    def ahead_s(self, since: float, until: float) -> float:
        """Return how far ahead the server's clock may have been at any time between two ticks, in seconds; 0 at least."""
        steps: list[tuple[float, float]] = [(record.tick, record.detail["offset_s"]) for record in self.of(CLOCK_STEPPED)]
        ends = [*(tick + STEP_NOTICED_S for tick, _ in steps), float("inf")]
        spells = zip([(float("-inf"), 0.0), *steps], ends, strict=True)
        return max(0.0, *(offset_s for (begin, offset_s), end in spells if begin <= until and end >= since))

    def was_silent(self, process: int, since: float, until: float) -> bool:
        """Return whether a process gave no sign of life at any time between two ticks."""
        before = self.fates(process, SILENT, HEARD, until=since)
        return bool(self.fates(process, SILENT, since=since, until=until)) or (bool(before) and before[-1].kind == SILENT)

    def outcome(self, publish: Record) -> Record | None:
        """Return how a publish ended; None where its process did not come to know."""
        return self._outcomes.get(id(publish))

    @cached_property
    def _outcomes(self) -> dict[int, Record]:
        found: dict[int, Record] = {}
        begun: dict[tuple[int, str], list[Record]] = defaultdict(list)
        for record in self.of(PUBLISH, CONFIRMED, REFUSED, UNKNOWN):
            waiting = begun[record.process, record.name]
            if record.kind == PUBLISH:
                waiting.append(record)
            elif waiting:
                found[id(waiting.pop(0))] = record
        return found

    def must_reach(self, publish: Record) -> tuple[str, ...]:
        """Return the queues that have to get what was published: those bound when it began, or the one that it names."""
        return self._routed(publish, [bound for bound in self._bound_to(publish) if self._stands(bound, publish)])

    def may_reach(self, publish: Record) -> tuple[str, ...]:
        """Return the queues that may get what was published: those that were bound at any time."""
        return self._routed(publish, self._bound_to(publish))

    def _routed(self, publish: Record, bound: list[Record]) -> tuple[str, ...]:
        if "via" not in publish.detail:
            return (publish.queue,)
        key = publish.detail.get("key", "")
        return tuple(sorted({one.queue for one in bound if _takes(one, key)}))

    def _bound_to(self, publish: Record) -> list[Record]:
        return [record for record in self.of(BOUND) if record.detail["exchange"] == publish.detail.get("via")]

    def _stands(self, bound: Record, publish: Record) -> bool:
        """Return whether a binding was there when a publish began, and no loss of data can have undone it."""
        undone = any(one.undoes(bound.tick, bound.tick, replicated=False) and one.at >= bound.tick for one in self.rollbacks)
        return bound.tick < publish.tick and not undone

    def of_message(self, name: str) -> list[Record]:
        """Return the records of a message: those that have its name, and those that have only its tag."""
        tags = {record.tag for record in self.by_name[name] if record.tag}
        return [*self.by_name[name], *(record for tag in tags for record in self.by_tag[tag] if not record.name)]

    @cached_property
    def holdings(self) -> dict[str, list[Holding]]:
        """Tag -> its deliveries in the order of their claims, and how each one ended.

        It ends with its settlement, with its process, or when its process falls silent. When its session breaks, it ends unless
        the work on it is under way: then the process keeps it.
        """
        found: dict[str, list[Holding]] = {}
        for tag, records in self.by_tag.items():
            deliveries = [record for record in records if record.kind == DELIVERED]
            # A worker that is thawed finds in its buffer what others got meanwhile. A server that lost data counts claims anew.
            for delivery in sorted(deliveries, key=lambda one: (self._rollbacks_before(one.tick), one.claim)):
                found.setdefault(tag, []).append(Holding(delivery, self._end_of(delivery, records)))
        return found

    def _rollbacks_before(self, tick: float) -> int:
        return sum(record.tick <= tick for record in self.of(ROLLED_BACK))

    def _end_of(self, delivery: Record, records: list[Record]) -> Record | None:
        mine = [
            record
            for record in records
            if record.kind in SETTLEMENTS
            and (record.process, record.session) == (delivery.process, delivery.session)
            and record.tick >= delivery.tick
        ]
        # A death is noted before the signal: its process may get some more until then.
        ends = [*mine[:1], *self.fates(delivery.process, KILLED, GONE)[:1]]
        ends += self.fates(delivery.process, SILENT, since=delivery.tick)[:1]
        confirmed = delivery.tick - delivery.detail.get("confirmed_s_ago", 0.0)
        ends += [record for record in self.of(ROLLED_BACK) if record.tick >= confirmed - ON_ITS_WAY_S][:1]
        work = [
            record
            for record in self.by_name.get(delivery.name, ())
            if record.kind in {START, END} and record.process == delivery.process and record.tick >= delivery.tick
        ]
        for fate in self.fates(delivery.process, DISCONNECTED, since=delivery.tick - NOTED_S):
            under_way = [record.kind for record in work if record.tick < fate.tick][-1:] == [START]
            if fate.session in {"", delivery.session} and not under_way:
                ends.append(fate)
                break
        # It fell silent before, and finds what it had got then.
        before = self.fates(delivery.process, SILENT, HEARD, until=delivery.tick)
        overtaken = any(one.claim > delivery.claim and one.tick <= delivery.tick for one in records if one.kind == DELIVERED)
        if before and (before[-1].kind == SILENT or overtaken):
            ends += [fate for fate in before if fate.kind == SILENT][-1:]
        return min(ends, key=lambda end: end.tick, default=None)

    def _grouped(self, attribute: str) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            value = getattr(record, attribute)
            if value:
                found[value].append(record)
        return found


def _takes(bound: Record, key: str) -> bool:
    """Return whether a binding takes a routing key. AMQP 0-9-1, 3.1.3: `*` is one word of a topic, `#` any number of them."""
    pattern = bound.detail["key"]
    if bound.detail["type"] != "topic":
        return bool(pattern == key)
    words = [{"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}.get(word, r"\." + re.escape(word)) for word in pattern.split(".")]
    return re.fullmatch("".join(words), f".{key}") is not None
