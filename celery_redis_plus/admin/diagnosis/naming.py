"""How findings name queues: a bounded number of them, and safe to paste."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from shlex import quote
from typing import Final

from celery_redis_plus.admin.diagnosis.finding import Finding

#: Queues, or consumers, that one check names.
NAMED: Final = 20


def named(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings, and say how many there are besides."""
    found = iter(findings)
    last = None
    for last in islice(found, NAMED):
        yield last
    more = sum(1 for _ in found)
    if more and last is not None:
        yield Finding(last.check, last.level, f"and {more:,} more of this kind", "", {"more": more})


def operand(queue: str) -> str:
    """Return a queue's name as the last word of a line for a shell: whoever may declare a queue chooses what is pasted."""
    return f"{'-- ' if queue.startswith('-') else ''}{quote(queue)}"
