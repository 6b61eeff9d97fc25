"""Moves messages from this transport back to kombu's own, in the same database: each in one step of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from celery_redis_plus.broker.queues.overview import read_overview
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.events import pack_text
from celery_redis_plus.migration.conversion import PriorityMapping, UnreadableError, to_kombu
from celery_redis_plus.migration.report import Report
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import split_payload

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.migration.kombu_broker import KombuBroker

#: Messages that one script call reads and moves, and bytes of payload after which it reads no further one.
PAGE, PAGE_BYTES = 50, 500_000
#: What the events of the messages name as their target.
TARGET = "kombu"
#: Why the messages of such a queue stay.
TRANSIENT = (
    "the queue is auto_delete, exclusive or has x-expires: its messages end with it. What to do: let its consumers finish them"
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits here."""

    tag: bytes
    #: When it is due, as ZSCORE has it; empty for a ready one.
    due: bytes
    text: bytes
    #: The step of kombu's list.
    step: int


class Exporter:
    """Gives the messages of this broker's queues to kombu's lists in the same database."""

    def __init__(self, commands: CommandConnection, keys: Keys, kombu: KombuBroker, mapping: PriorityMapping) -> None:
        self._commands = commands
        self._keys = keys
        self._kombu = kombu
        self._mapping = mapping
        self.report = Report()

    def give(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Move what waits in a queue, ready, held by groups, and then delayed; yield after each page how many were moved.

        Raises:
            OptionError: it is not said what shall become of priorities.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        of = self._keys.queue(queue)
        for place in (of.ready, of.held, of.delayed):
            skip, refused = 0, list[bytes]()
            while not stopped():
                found, looked_at = self._read(queue, place, skip)
                if not looked_at:
                    break
                moved = self._give(queue, found)
                # What stays is passed over from now on; what others have taken makes room for the next.
                skip += looked_at - len(found)
                yield moved
                # Consumers may have taken the whole page meanwhile; those of a page that comes again stay.
                if found and not moved:
                    tags = [one.tag for one in found]
                    if tags == refused:
                        break
                    refused = tags

    def note_left(self, queue: str) -> None:
        """Note in the report what the queue still has that no list of kombu's can take."""
        overview, noted = read_overview(self._commands, self._keys, queue), self.report.of(queue)
        if overview.unacked:
            noted.leave(overview.unacked, f"{overview.unacked} message(s) are unacked: stop the consumers, and they return")
        if overview.dead:
            noted.leave(overview.dead, f"{overview.dead} dead letter(s) stay: kombu's transport has none; see `dead-letters`")

    def note_transient(self, queue: str) -> None:
        """Note in the report what a queue has that ends with its process: kombu has no such list for long."""
        overview = read_overview(self._commands, self._keys, queue)
        count = overview.ready + overview.delayed + overview.unacked + overview.dead
        if count:
            self.report.of(queue).leave(count, TRANSIENT)

    def _read(self, queue: str, place: bytes, skip: int) -> tuple[list[Waiting], int]:
        """Return messages as kombu has them, and how many were looked at."""
        of = self._keys.queue(queue)
        _, looked_at, *fields = self._commands.call(script("list_messages"), [place, of.message], skip, PAGE, PAGE_BYTES)
        found, now_ms = [], server_ms(self._commands) if fields else 0
        for tag, score, payload in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            envelope, body = split_payload(payload)
            if body is None:
                body = self._commands.command("HGET", of.message + tag, "body") or b""
            due = score if place == of.delayed else b""
            try:
                due_ms = int(float(due)) if due else None
                text, priority = to_kombu(envelope, body, tag.decode(), due_ms, self._mapping, now_ms)
            except UnreadableError as error:
                self.report.of(queue).leave(1, str(error))
                continue
            found.append(Waiting(tag, due, text, self._kombu.step_of(priority)))
        return found, looked_at

    def _give(self, queue: str, found: Sequence[Waiting]) -> int:
        """Move messages, those to one list in one call; return how many still waited."""
        by_step = groupby(found, key=attrgetter("step"))
        return sum(sum(self._give_to(queue, list(those), self._kombu.keys.list_of(queue, step))) for step, those in by_step)

    def _give_to(self, queue: str, found: Sequence[Waiting], target: bytes) -> list[int]:
        """Move messages to a list of our database; return 1 for each that still waited, 0 for the others."""
        noted = self.report.of(queue)
        arguments = [part for one in found for part in (one.tag, one.due, one.text)]
        keys = (*self._keys.queue(queue).state_keys, target)
        given: list[int] = self._commands.call(script("give_to_kombu"), keys, pack_text(TARGET), *arguments)
        for one, waited in zip(found, given, strict=True):
            noted.delayed += bool(waited and one.due)
            noted.ready += bool(waited and not one.due)
        return given
