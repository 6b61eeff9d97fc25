"""Moves messages from kombu's own Redis transport to this one, in the same database: each in one step of a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.migration.kombu_broker import next_count
from celery_redis_plus.migration.report import UNKNOWN
from celery_redis_plus.migration.target import NO_QUEUE, Found, Target

if TYPE_CHECKING:
    from celery_redis_plus.migration.kombu_broker import KombuBroker, KombuUnacked
    from celery_redis_plus.migration.report import Report

#: Why unacked messages stay.
SEVERAL_QUEUES: Final = (
    "unacked messages stay whose routing key is bound to several queues ({}): kombu does not note from which one each came. What "
    "to do: let an old worker run until the visibility timeout has returned them, and take them then"
)
NO_BINDING: Final = (
    "unacked messages stay whose queue is unknown: nothing is bound to their exchange with their routing key. What to do: "
    "declare the queue with an old process, and run the command again"
)


class Importer:
    """Takes messages of the kombu installation in the same database."""

    def __init__(self, target: Target, kombu: KombuBroker) -> None:
        """Move into `target`; `kombu` reads over the same connection."""
        self._target = target
        self._kombu = kombu
        self.report = target.report

    def take_waiting(self, queue: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Move what waits in a queue's lists, by their step; yield after each page how many were moved.

        Raises:
            OptionError: it is not said what shall become of priorities.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        for step in self._kombu.lengths(queue):
            source = (self._kombu.keys.list_of(queue, step), self._kombu.keys.unacked_index)
            skip, count = 0, 1
            while not stopped():
                page = self._kombu.page(source[0], skip, count)
                if not page:
                    break
                moved, unreadable = self._take(queue, [(text, b"", text) for text in page], source, skip)
                if moved is None:
                    self.report.of(queue).leave(sum(self._kombu.lengths(queue).values()), NO_QUEUE)
                    return
                if not moved and not unreadable:
                    # Others have taken the whole page; what is left is found by the next pass.
                    break
                # Those that stay are passed over from now on.
                skip += unreadable
                count = next_count(count, page)
                yield moved

    def take_unacked(
        self, older_than_s: float, only: Callable[[str], bool], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """Move what kombu's workers have had for that long, those delivered first before the others; yield as `take_waiting`.

        A worker that still works on one finds nothing to ack at its end. `only` selects queues.
        Raises as `take_waiting` does.
        """
        for queue, those in unacked_pages(self._kombu, self.report, older_than_s, only, stopped):
            texts = [(one.text, one.delivery_tag, message_in(one.text)) for one in those]
            moved, _ = self._take(queue, texts, (self._kombu.keys.unacked, self._kombu.keys.unacked_index))
            if moved is None:
                self.report.of(queue).leave(len(those), NO_QUEUE)
            self.report.of(queue).unacked += moved or 0
            yield moved or 0

    def _take(
        self, queue: str, texts: Sequence[tuple[bytes, bytes, bytes]], source: tuple[bytes, bytes], skip: int = 0
    ) -> tuple[int | None, int]:  # fmt: skip
        """Move messages: as they stand there, their delivery tag in the hash, and the message itself.

        `source` is kombu's list or hash, and its index of unacked messages; `skip` messages before them in the list stay.
        Returns how many were moved, None where this broker has no such queue; and how many cannot be converted.
        """
        # Before anything is moved: what is refused stays where kombu's workers find it.
        found = self._target.convert(queue, texts)
        if found is None:
            return None, 0
        return self._move(queue, found, source, skip + 2 * len(texts)), len(texts) - len(found)

    def _move(
        self, queue: str, found: Sequence[Found], source: tuple[bytes, bytes],
        searched: int,  # noqa: ARG002 - the script for this database finds a text wherever it stands
    ) -> int | None:  # fmt: skip
        """Move converted messages, of which those in a list are among the first `searched` ones; return as `Target.store`."""
        return self._target.store("take_from_kombu", queue, source, found, lambda one: (one.text, one.delivery_tag))


def unacked_pages(
    kombu: KombuBroker, report: Report, older_than_s: float, only: Callable[[str], bool], stopped: Callable[[], bool]
) -> Iterator[tuple[str, list[KombuUnacked]]]:
    """Yield the unacked messages of each queue that `only` selects, a page at a time.

    Those that belong to no queue, or to several, are noted in `report` and left out.
    """
    until_s = server_ms(kombu.commands) / 1000 - older_than_s
    for page in kombu.unacked(until_s):
        if stopped():
            return
        by_queue: dict[str, list[KombuUnacked]] = {}
        for one in page:
            queues = kombu.queues_of_unacked(one) or [UNKNOWN]
            if not any(map(only, queues)):
                continue
            if len(queues) > 1:
                report.of(queues[0]).leave(1, SEVERAL_QUEUES.format(", ".join(map(repr, queues))))
            elif queues == [UNKNOWN]:
                report.of(UNKNOWN).leave(1, NO_BINDING)
            else:
                by_queue.setdefault(queues[0], []).append(one)
        yield from by_queue.items()


def message_in(text: bytes) -> bytes:
    """Return the message of an entry of the hash of unacked ones, as kombu's list has it."""
    try:
        return json.dumps(json.loads(text)[0]).encode()
    except (ValueError, TypeError, LookupError, RecursionError):
        return b""
