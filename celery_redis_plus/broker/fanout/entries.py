"""The stored form of a broadcast: one entry of a stream, with its number in the stream, its identity and its routing key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: What a reply of XREAD has for one entry: its id, and its fields and values in turn.
Entry = Sequence[Any]
#: An id as two numbers, which compare as the server compares them.
EntryId = tuple[int, int]

#: Names of an entry's two fields.
HEAD, PAYLOAD = b"head", b"payload"


def parse_id(text: bytes) -> EntryId:
    """Return an entry's id as two numbers."""
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence or 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: everything up to `entry` lies before it, `number` broadcasts in all."""

    entry: bytes = b"0-0"
    number: int = 0

    @property
    def id(self) -> EntryId:
        """The entry's id as two numbers."""
        return parse_id(self.entry)


def is_ours(entry: Entry) -> bool:
    """Return whether the entry is a broadcast of this package."""
    fields: list[bytes] = entry[1]
    if len(fields) != 4 or fields[0] != HEAD or fields[2] != PAYLOAD:
        return False
    head = fields[1].split(b" ", 2)
    return len(head) == 3 and head[0].isdigit()


def number_of(entry: Entry) -> int:
    """Return the broadcast's number in its stream, from 1 on."""
    return int(entry[1][1].split(b" ", 1)[0])


def mark_of(entry: Entry, number: int) -> Mark:
    """Return the place after the entry; a foreign one is not counted, so `number` stays what it was before it."""
    return Mark(entry[0], number_of(entry) if is_ours(entry) else number)


def publication_of(entry: Entry) -> tuple[bytes, int]:
    """Return the publisher's id, and the number that it gave the broadcast: it counts over all exchanges."""
    identity: bytes = entry[1][1].split(b" ", 2)[1]
    publisher, _, number = identity.partition(b"/")[0].rpartition(b".")
    return publisher, int(number) if number.isdigit() else 0


def routing_key_of(entry: Entry) -> str:
    """Return the broadcast's routing key."""
    head: bytes = entry[1][1]
    return head.split(b" ", 2)[2].decode("utf-8", "surrogateescape")
