"""What the workers write down: one line of a file for each record, in the folder in which they run.

A line is written when it happens, so it outlives a worker that is killed right after. Results of Celery are not used: they
would say what the worker reported, not what it did.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery import Task

Record = dict[str, Any]


def note(kind: str, task: Task, /, **facts: object) -> None:
    """Add a record of a running task: the facts, its worker, and the time."""
    worker = task.request.hostname.partition("@")[0]
    with _file(Path(), kind).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**facts, "worker": worker, "at": time.time()}) + "\n")


def read(folder: Path, kind: str, last: int = 0) -> list[Record]:
    """Return the records of one kind in the order in which they were written: the `last` ones; 0 is all of them."""
    return [json.loads(line) for line in _lines(folder, kind)[-last:]]


def count(folder: Path, kind: str) -> int:
    """Return how many records of one kind there are."""
    return len(_lines(folder, kind))


def _lines(folder: Path, kind: str) -> list[bytes]:
    file = _file(folder, kind)
    # The last piece is empty, or a line that is being written.
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def _file(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.jsonl"
