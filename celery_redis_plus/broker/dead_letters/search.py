"""Selects dead letters of a queue by task, reason, error, text and age, a page at a time, and groups them by their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.selection import has_text, is_of_task
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
        error: the exception's class, or a pattern of class and text such as `ValueError: *`.
        release: the release of the worker whose task failed (option `release`), or a pattern of it.
        text: a text in the headers: in the arguments of a task, its id, or an id of its workflow.
        older_than_s, newer_than_s: how long ago they died, in seconds, by the server's clock.
    """

    task: str | None = None
    reason: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    error: str | None = None
    text: str | None = None
    release: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether task, reason, error, release and text apply."""
        return (
            is_of_task(letter.headers, self.task)
            and self.reason in {None, letter.reason}
            and self._has_error(letter)
            and has_text(letter.headers, self.text)
        )

    def _has_error(self, letter: DeadLetter) -> bool:
        if self.error is None and self.release is None:
            return True
        failure = letter.failure
        if failure is None:
            return False
        has_error = self.error is None or failure.kind == self.error or fnmatchcase(failure.text, self.error)
        return has_error and (self.release is None or fnmatchcase(failure.release, self.release))

    def span(self, now_ms: int) -> tuple[float, float]:
        """Return from when to when they died, ms since the epoch, both included."""
        first = 0 if self.newer_than_s is None else now_ms - self.newer_than_s * 1000
        return first, now_ms - (self.older_than_s or 0) * 1000


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters of one task that died of one reason, with one class of error.

    Attributes:
        task, reason: of all. error: the class of the exception; None: no consumer has said so.
        count: how many. first_ms, last_ms: when the first and the last of them died, ms since the epoch.
        last_tag, example: the last one, and its exception.
    """

    task: str | None
    reason: str
    error: str | None
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str | None = None
    last_tag: str = ""

    def count_letter(self, letter: DeadLetter) -> None:
        """Count one more."""
        self.count += 1
        self.first_ms = min(self.first_ms or letter.died_ms, letter.died_ms)
        # Several may have died in one millisecond: then the tag decides.
        if (letter.died_ms, letter.tag) >= (self.last_ms, self.last_tag):
            self.last_ms, self.last_tag = letter.died_ms, letter.tag
            self.example = None if letter.failure is None else letter.failure.text


def grouped(letters: Iterable[DeadLetter]) -> list[DeadLetterGroup]:
    """Return groups of dead letters, the largest first."""
    groups: dict[tuple[str | None, str, str | None], DeadLetterGroup] = {}
    for letter in letters:
        key = letter.task, letter.reason, None if letter.failure is None else letter.failure.kind
        groups.setdefault(key, DeadLetterGroup(*key)).count_letter(letter)
    return sorted(groups.values(), key=lambda one: (-one.count, -one.last_ms))


class DeadLetterSearch:
    """The dead letters that a queue has at one moment, and a filter selects; those that die later do not belong to them.

    A task that is replayed and dies again at once is therefore met only once.
    """

    def __init__(
        self, commands: CommandConnection, keys: Keys, letters: DeadLetters, queue: str, wanted: DeadLetterFilter, *,
        newest: bool = False,
    ) -> None:  # fmt: skip
        """Note the tags of those that died at the time that `wanted` allows, with `newest` the last one first.

        Raises as `CommandConnection.call` does.
        """
        first, last = wanted.span(server_ms(commands))
        found = [(died, tag) for tag, died in scan_tags(commands, keys.queue(queue).dead) if first <= died <= last]
        self._letters = letters
        self._queue = queue
        self._wanted = wanted
        #: Their tags, in their order; nothing else is looked at yet.
        self.tags = [tag for _, tag in sorted(found, reverse=newest)]

    def pages(self, first: int = 0, most: int | None = None) -> Iterator[tuple[int, list[DeadLetter]]]:
        """Yield how many tags were looked at for a page, and those dead letters among them that the filter selects.

        It begins with the tag number `first`, and looks at `most`. Raises as `CommandConnection.call` does.
        """
        tags = self.tags[first:] if most is None else self.tags[first : first + most]
        for at in range(0, len(tags), DEAD_LETTER_PAGE):
            page = tags[at : at + DEAD_LETTER_PAGE]
            yield len(page), [letter for letter in self._letters.read(self._queue, page) if self._wanted.matches(letter)]
