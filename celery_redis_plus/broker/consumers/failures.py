"""Log lines about messages that fail: those that died at the delivery limit, and those that are sent back again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redis_plus.stored_message import shown_envelope

logger = logging.getLogger(__name__)

#: Values in a script's reply for one message (`note_death` in `lua/include/return_to_queue.lua`).
DEATH_VALUES = 5
#: Place as the scripts call it -> how the line ends.
PLACES = {
    b"store": "it is kept: celery-redis-plus dead-letters show %(queue)s %(tag)s",
    b"exchange": "it goes to the dead-letter exchange of its queue",
    b"discarded": "the queue is transient and keeps no dead letters: it is discarded",
}


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that died at its limit."""

    #: The key of the queue's record.
    meta: bytes
    tag: str
    #: Deliveries that failed.
    failures: int
    #: A key of `PLACES`.
    place: bytes
    envelope: bytes


def read_deaths(parts: Sequence[bytes | int]) -> Iterator[Failed]:
    """Yield the deaths that a script's reply tells of; it has the first ones only."""
    for at in range(0, len(parts), DEATH_VALUES):
        meta, tag, failures, place, envelope = (_bytes(part) for part in parts[at : at + DEATH_VALUES])
        yield Failed(meta, tag.decode(), int(failures), place, envelope)


def log_deaths(queue: str, died: int, deaths: Sequence[Failed]) -> None:
    """Warn of `died` messages of a queue, of which `deaths` are known by name."""
    for death in deaths:
        end = PLACES.get(death.place, PLACES[b"store"]) % {"queue": queue, "tag": death.tag}
        logger.warning(
            "%s of queue %r died at the delivery limit, or at the end of its retry policy, after %d failed deliveries; %s",
            name_of(death.tag, death.envelope), queue, death.failures, end, extra=_about(queue, death.tag, death.envelope),
        )  # fmt: skip
    if died > len(deaths):
        logger.warning(
            "%d more message(s) of queue %r died at the delivery limit", died - len(deaths), queue, extra={"queue": queue}
        )


def log_pause(queue: str, tag: str, envelope: bytes) -> None:
    """Tell of a message that was sent back for the second time."""
    logger.warning(
        "%s of queue %r was sent back with requeue for the second time: from now on such messages wait before they are delivered "
        "again, up to 5 s, so that others have their turn (this is logged once a queue)",
        name_of(tag, envelope), queue, extra=_about(queue, tag, envelope),
    )  # fmt: skip


def name_of(tag: str, envelope: bytes) -> str:
    """Return what a log calls a message: Celery's task name and id, where it is a task."""
    task, task_id = _task_in(envelope)
    return f"task {task}[{task_id}] (message {tag})" if task else f"message {tag}"


def _about(queue: str, tag: str, envelope: bytes) -> dict[str, Any]:
    """Return what a log record has beside its text."""
    task, task_id = _task_in(envelope)
    return {"queue": queue, "tag": tag, "task_name": task, "task_id": task_id}


def _task_in(envelope: bytes) -> tuple[Any, Any]:
    """Return Celery's name and id of the task in a message; None where it is none."""
    headers = shown_envelope(envelope)["headers"]
    return headers.get("task"), headers.get("id")


def _bytes(part: bytes | int) -> bytes:
    return b"%d" % part if isinstance(part, int) else part
