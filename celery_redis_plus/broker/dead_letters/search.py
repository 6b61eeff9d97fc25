"""Selects dead letters of a queue by task, reason, error and age, a page at a time, and groups them by what they died of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import DEAD_LETTER_PAGE
from celery_redis_plus.connection.scans import scan_tags
from celery_redis_plus.connection.server_time import server_ms

if TYPE_CHECKING:
    from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant: those to which everything applies that is given.

    Attributes:
        task: the task's name, or a pattern with `*`, `?`, `[…]`.
        reason: `rejected`, `expired`, `delivery_limit`, …
        error: the class of the exception by which it died, such as `KeyError`, or a pattern.
        older_than_s, newer_than_s: how long ago they died, in seconds, by the server's clock.
    """

    task: str | None = None
    reason: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    error: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether task, reason and error apply."""
        return (
            (self.task is None or fnmatchcase(letter.task or "", self.task))
            and self.reason in {None, letter.reason}
            and (self.error is None or fnmatchcase(error_class(letter) or "", self.error))
        )

    def span(self, now_ms: int) -> tuple[float, float]:
        """Return from when to when they died, ms since the epoch, both included."""
        first = 0 if self.newer_than_s is None else now_ms - self.newer_than_s * 1000
        return first, now_ms - (self.older_than_s or 0) * 1000


def error_class(letter: DeadLetter) -> str | None:
    """Return the class of the exception by which a message died; None where no consumer has said one."""
    return None if letter.failure is None else letter.failure.text.partition(":")[0]


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters of one queue that died of the same: task, class of the exception, and reason."""

    queue: str
    task: str | None
    error: str | None
    reason: str
    count: int
    #: When the first and the last of them died, ms since the epoch.
    first_ms: int
    last_ms: int
    #: The tag and the error of the last one.
    tag: str
    text: str | None


class DeadLetterSearch:
    """The dead letters that a queue has at one moment, and a filter selects; those that die later do not belong to them.

    A task that is replayed and dies again at once is therefore met only once.
    """

    def __init__(
        self, commands: CommandConnection, keys: Keys, letters: DeadLetters, queue: str, wanted: DeadLetterFilter
    ) -> None:  # fmt: skip
        """Note the tags of those that died at the time that `wanted` allows. Raises as `CommandConnection.call` does."""
        first, last = wanted.span(server_ms(commands))
        found = [(died, tag) for tag, died in scan_tags(commands, keys.queue(queue).dead) if first <= died <= last]
        self._letters = letters
        self._queue = queue
        self._wanted = wanted
        #: Their tags, the longest dead first; task and reason are not yet looked at.
        self.tags = [tag for _, tag in sorted(found)]

    def pages(self) -> Iterator[tuple[int, list[DeadLetter]]]:
        """Yield how many tags were looked at for a page, and those dead letters among them that the filter selects.

        Raises as `CommandConnection.call` does.
        """
        for at in range(0, len(self.tags), DEAD_LETTER_PAGE):
            page = self.tags[at : at + DEAD_LETTER_PAGE]
            yield len(page), [letter for letter in self._letters.read(self._queue, page) if self._wanted.matches(letter)]

    def groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by what they died of, the group with the latest one first. Raises as `pages`."""
        found: dict[tuple[str | None, str | None, str], DeadLetterGroup] = {}
        for _, page in self.pages():
            for letter in page:
                task, error = letter.task, error_class(letter)
                text = None if letter.failure is None else letter.failure.text
                group = found.get((task, error, letter.reason))
                if group is None:
                    group = found[task, error, letter.reason] = DeadLetterGroup(
                        self._queue, task, error, letter.reason, 0, letter.died_ms, 0, "", None
                    )
                group.count += 1
                # The longest dead come first.
                group.last_ms, group.tag, group.text = letter.died_ms, letter.tag, text
        return sorted(found.values(), key=lambda group: -group.last_ms)
