"""Where tasks and callbacks note that they ran: one appended record, about a microsecond.

Every process and thread appends to the same file; a record is smaller than a page and written by one
``write`` in append mode, so records never mix, and counting them is one ``stat``.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = struct.Struct("=qddd")
#: Sequence number of the record that the worker's ready signal writes.
READY = -1


@dataclass(frozen=True)
class Entry:
    """One run of a task: its number, when it was due, when it began, the process's CPU time then."""

    seq: int
    due: float
    at: float
    cpu_s: float


class Journal:
    """Append-only, shared between processes, safe across fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, seq: int, due: float = 0.0) -> None:
        """Append one record."""
        os.write(self._fd, _RECORD.pack(seq, due, time.time(), time.process_time()))

    def count(self) -> int:
        """How many records there are."""
        return os.fstat(self._fd).st_size // _RECORD.size

    def entries(self) -> list[Entry]:
        """All records, oldest first."""
        return [Entry(*fields) for fields in _RECORD.iter_unpack(self.path.read_bytes())]

    def wait(self, count: int, timeout_s: float, interval_s: float = 0.02) -> bool:
        """Until there are ``count`` records; False after ``timeout_s`` without them."""
        give_up_at = time.monotonic() + timeout_s
        while self.count() < count:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(interval_s)
        return True

    def close(self) -> None:
        """Close the file; it stays where it is."""
        os.close(self._fd)
