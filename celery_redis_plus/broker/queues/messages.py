"""One message by its id: where it stands, and what can be done with it while no consumer has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.deduplication import moved_deduplication
from celery_redis_plus.broker.arguments.eta import PRIORITY_BAND_MS, check_new_time
from celery_redis_plus.broker.arguments.priority import RANKS, check_priority
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.last_error import read_failure
from celery_redis_plus.broker.queue_failures import of_our_keys
from celery_redis_plus.broker.queues.listing import State, search_headers
from celery_redis_plus.broker.queues.queue_registry import QueueRegistry
from celery_redis_plus.errors import QueueNotFound, WrongKeyType
from celery_redis_plus.event_log.finished_messages import failed_deliveries, spent_ms
from celery_redis_plus.event_log.metadata import describe
from celery_redis_plus.events import (
    CLAIMED,
    DEAD,
    DELAYED,
    GONE,
    READY,
    TRANSITIONS,
    Event,
    pack_text,
    read_entry,
    shown_state,
)
from celery_redis_plus.keys import encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import TAG_TIME, shown_envelope, split_payload, stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: A message's id: time and number in hexadecimal, a flag, the queue's id.
MESSAGE_ID = re.compile(r"[0-9a-f]{19}[^0-9a-z][0-9a-zR]+")
#: Last events of a queue's log that are searched for a finished message when there is no index, and how many one command reads.
LOG_TAIL, LOG_PAGE = 10_000, 1000
#: Tells `release` that an operator gives a message back.
KICKED = 2
#: Messages in one script call: some 1 ms of the server's time, with dead letters.
MESSAGES_A_CALL = 25


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """What is known of a message. Times are ms since the epoch on the server's clock; None: there is none, or it is unknown."""

    id: str
    queue: str
    #: PENDING, DELAYED, RETRYABLE, PROCESSING, DEAD; of one that is gone COMPLETED, FAILED, RETRIED or MOVED.
    state: str
    #: How many messages stand before it: among the ready ones, the delayed ones, or the dead letters.
    position: int | None = None
    since_ms: int | None = None
    #: When a delayed message becomes ready; when a claimed one is given to others unless its holder sends a heartbeat.
    due_ms: int | None = None
    published_ms: int | None = None
    #: That with which it was published, or that an operator gave it since.
    priority: int | None = None
    #: How often it was delivered, and how many of these deliveries failed.
    deliveries: int = 0
    failures: int = 0
    #: Who has it: the worker's name where its events are written with an index, else the holder's session on the server.
    holder: str | None = None
    #: The session that has it: by it `admin.holders` knows host and process.
    session: str | None = None
    #: Why it is dead or gone.
    reason: str | None = None
    #: The exception with which the work on it ended last, `ValueError: the message`; and the end of its traceback, where the
    #: option `error_traceback_bytes` keeps it and the message is still there.
    error: str | None = None
    traceback: str | None = None
    #: The queue that a MOVED one went to, where it has another id.
    target: str | None = None
    task_id: str | None = None
    task: str | None = None
    first_delivery_ms: int | None = None
    last_delivery_ms: int | None = None
    #: Milliseconds that it was ready or delayed, and that workers had it; up to its end.
    queued_ms: int | None = None
    worked_ms: int | None = None
    #: Its lifecycle events, where they are written with `event_log_index`.
    events: tuple[Event, ...] = ()

    @property
    def stands(self) -> bool:
        """Whether the message is there: it waits, is held, or is dead; else it is gone, and only its events tell of it."""
        return self.position is not None or self.session is not None


class Messages:
    """Single messages over one connection. All methods raise as `CommandConnection.call` does."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, *, dead_letter_max: int, priority_order: str = "high-first"
    ) -> None:  # fmt: skip
        """Use `commands`; a queue keeps `dead_letter_max` dead letters. `priority_order` is the option."""
        self._ranks = RANKS[priority_order]
        self._commands = commands
        self._keys = keys
        self._dead_letter_max = dead_letter_max

    def find(self, queue: str, tag: str) -> MessageInfo | None:
        """Return what is known of a message; None where the queue knows nothing of it.

        One that is gone is known by the queue's events: with `event_log_index` at once, else if it is among the last `LOG_TAIL`.
        """
        of = self._keys.queue(queue)
        keys = [of.ready, of.delayed, of.index, of.message, of.dlx_outbox, of.dead]
        place, *found = self._commands.call(script("find_message"), keys, tag)
        events = self._trail(queue, tag)
        if place:
            return _standing(queue, tag, place.decode(), [value.decode("utf-8", "surrogateescape") for value in found], events)
        events = events or self._tail(queue, tag)
        return _gone(queue, tag, events) if events and TRANSITIONS[events[-1].event].target == GONE else None

    def read(self, queue: str, tag: str) -> tuple[bytes, bytes] | None:
        """Return envelope and body of a message; None where it is not there, or its key holds something else."""
        try:
            payload, large = self._commands.command(
                "HMGET", self._keys.queue(queue).message + encode_name(tag), "payload", "body"
            )
        except WrongKeyType:
            return None
        if payload is None:
            return None
        envelope, body = split_payload(payload)
        return envelope, (large or b"") if body is None else body

    def of_task(self, queue: str, task_id: str) -> list[str]:
        """Return the ids of a Celery task's messages in a queue with `event_log_index`, the last published last."""
        found: bytes | None = self._commands.command("GET", self._keys.queue(queue).task_index + encode_name(task_id))
        return [] if found is None else found.decode().split()

    def search_task(self, queue: str, task_id: str, states: Sequence[State]) -> Iterator[tuple[int, list[str]]]:
        """Look at each message of a queue in these states; yield how many were looked at, and the ids of those of a task."""
        for looked_at, found in search_headers(self._commands, self._keys, queue, states, task_id):
            yield looked_at, [tag for tag, headers in found if headers.get("id") == task_id]

    def give_back(self, queue: str, tags: Sequence[str], session: str | None = None) -> list[str]:
        """Take messages from the consumers that have them, and make them ready; return the ids of those that a consumer had.

        With `session`, the id of a connection, only those that this one has.

        It counts as no failure. A consumer that works on one goes on: its ack still removes the message, its other settlements
        have no effect, and its next heartbeat tells it. A message that is claimed anew meanwhile stays with its new consumer.
        """
        of = self._keys.queue(queue)
        given: list[str] = []
        for at in range(0, len(tags), MESSAGES_A_CALL):
            page = tags[at : at + MESSAGES_A_CALL]
            reads = [("HMGET", of.message + encode_name(tag), "claim", "owner") for tag in page]
            for tag, fields in zip(page, of_our_keys(self._commands.pipeline(reads)), strict=True):
                claim, owner = fields or (None, None)
                if claim is None or (session is not None and owner != encode_name(session)):
                    continue
                # One by one, since the script counts; most often it is one.
                if self._commands.call(script("release"), of.release, KICKED, tag, claim, 0):
                    given.append(tag)
        return given

    def cancel(self, queue: str, tags: Sequence[str], *, dead_letter: bool = False) -> list[str]:
        """Remove messages that no consumer has yet; return the ids of those that were there.

        The others are gone, or a consumer has them, or their keys hold something else, and they are passed over.

        Args:
            queue: the queue.
            tags: the messages' ids.
            dead_letter: make them dead letters with the reason `cancelled`, instead of removing them for good.
        """
        cancelled: list[str] = []
        for at in range(0, len(tags), MESSAGES_A_CALL):
            page = tags[at : at + MESSAGES_A_CALL]
            places = self._keys.queue(queue).state_keys
            removed = self._commands.call(script("cancel"), places, int(dead_letter), self._dead_letter_max, *page)
            cancelled += [tag.decode() for tag in removed]
        return cancelled

    def reschedule(self, queue: str, tag: str, eta: int | str) -> bool:
        """Give a message that no consumer has yet another time.

        Args:
            queue: the queue.
            tag: the message's id.
            eta: ms since the epoch, `+ms` from the server's now; what is over is now.

        Returns:
            False where it is not there, a consumer has it, or its key or place is damaged.

        Raises:
            InvalidEta: it is over a hundred years from now, or after November 2286.
        """
        check_new_time(eta)
        return bool(self._commands.call(script("reschedule"), self._keys.queue(queue).state_keys, tag, eta))

    def prioritize(self, queue: str, tag: str, priority: int) -> bool:
        """Give a message that no consumer has yet another priority; its time stays. Return whether it was there.

        Its place and the listings have it; the worker is told the one with which it was published. A priority above the queue's
        `x-max-priority` counts as that one.

        Raises:
            InvalidPriority: it is no whole number from 0 to 255.
        """
        text = self._commands.command("HGET", self._keys.queue(queue).meta, "arguments")
        cap = None if text is None else QueueArguments.decode(text).max_priority
        checked = check_priority(priority, cap)
        places = self._keys.queue(queue).state_keys
        return bool(self._commands.call(script("reschedule"), places, tag, "", self._ranks[checked], checked))

    def move(self, queue: str, tag: str, target: str) -> str | None:
        """Move a message that no consumer has yet into another queue, with its priority and its time; return its id there.

        Returns:
            None where it is not there, somebody has it, or its key or place is damaged.

        Raises:
            QueueNotFound: there is no queue `target`; the message stays where it is.
        """
        of = self._keys.queue(queue)
        line, body = self.read(queue, tag) or (b"", b"")
        envelope, there = shown_envelope(line), self._keys.queue(target)
        description = describe(envelope["headers"], envelope["properties"], body_size=len(body), source_id=tag)
        deduplication = moved_deduplication(envelope["headers"], of, there)
        moved: bytes = self._commands.call(
            script("move_message"), [*of.state_keys, *there.publish], tag, description, pack_text(target), *deduplication
        )
        if moved == b"NOQUEUE":
            raise QueueNotFound(f"queue {target!r} does not exist: the message {tag} stays in {queue!r}")
        if moved and any(self._commands.command("HMGET", there.message + moved, "expires", "ttl_ms")):
            # As its publisher had it: it expires in time where nobody consumes, too.
            QueueRegistry(self._commands, self._keys).ensure_swept(target)
        return moved.decode() or None

    def _trail(self, queue: str, tag: str) -> list[Event]:
        of = self._keys.queue(queue)
        trail: bytes | None = self._commands.command("GET", of.event_index + encode_name(tag))
        ids = [] if trail is None else trail.split()
        found = self._commands.ask([("XRANGE", of.events, entry, entry) for entry in ids])
        read = [read_entry(fields) for entries in found for _, fields in entries]
        return [event for event in read if event is not None and event.id == tag]

    def _tail(self, queue: str, tag: str) -> list[Event]:
        stream, last = self._keys.queue(queue).events, b"+"
        events: list[Event] = []
        for _ in range(LOG_TAIL // LOG_PAGE):
            entries = self._commands.command("XREVRANGE", stream, last, "-", "COUNT", LOG_PAGE)
            mine = [read_entry(fields) for _, fields in entries if encode_name(tag) in fields[1]]
            events = [event for event in reversed(mine) if event is not None and event.id == tag] + events
            if len(entries) < LOG_PAGE or (events and events[0].event == "published"):
                break
            last = b"(" + entries[-1][0]
        return events


_PLACES = {"ready": READY, "delayed": DELAYED, "claimed": CLAIMED, "dead": DEAD}


def _standing(queue: str, tag: str, place: str, found: list[str], events: list[Event]) -> MessageInfo:
    score, rank, envelope, claims, failures, by, reason, died, _, error, claimed, changed = found
    state = _PLACES[place]
    moment = stored_number(score)
    failure = read_failure(error)
    shown = shown_envelope(envelope.encode("utf-8", "surrogateescape"))
    headers, priority = shown["headers"], shown["properties"].get("priority")
    claimed_ms = stored_number(claimed) or None
    since = {READY: moment % PRIORITY_BAND_MS, DEAD: stored_number(died), CLAIMED: claimed_ms}.get(state)
    told = _told(queue, tag, shown_state(state, event="", reason="", tried=bool(claims)), events)
    return replace(
        told,
        position=None if state == CLAIMED else int(rank),
        since_ms=told.since_ms if events else since,
        due_ms=moment if state in (DELAYED, CLAIMED) else None,
        priority=stored_number(changed) if changed else priority if isinstance(priority, int) else None,
        deliveries=stored_number(claims),
        failures=stored_number(failures),
        holder=(told.holder or by) if state == CLAIMED else None,
        session=by if state == CLAIMED else None,
        last_delivery_ms=told.last_delivery_ms or claimed_ms,
        reason=reason or None,
        error=None if failure is None else failure.text,
        traceback=None if failure is None else failure.traceback or None,
        task_id=_text(headers.get("id")),
        task=_text(headers.get("task")),
    )


def _text(value: object) -> str | None:
    """Return a header that is a text; a publisher may have sent anything."""
    return None if value is None else str(value)


def _gone(queue: str, tag: str, events: list[Event]) -> MessageInfo:
    first, last = events[0], events[-1]
    if any(event.event == "failed" for event in events):
        # An ack that left early may have arrived after it.
        last = next(event for event in events if event.event == "failed")
    tried = any(event.event == "claimed" for event in events)
    return replace(
        _told(queue, tag, shown_state(GONE, event=last.event, reason=last.reason or "", tried=tried), events),
        failures=failed_deliveries(events),
        reason=last.reason,
        error=last.error,
        target=last.target,
        task_id=first.task_id,
        task=first.task,
    )


def _told(queue: str, tag: str, state: str, events: list[Event]) -> MessageInfo:
    """Return what the id and the events, if there are any, tell of a message in whatever state."""
    claimed = [event for event in events if event.event == "claimed"]
    whole = bool(events) and events[0].event == "published"
    queued_ms, worked_ms = spent_ms(events) if whole else (None, None)
    return MessageInfo(
        id=tag,
        queue=queue,
        state=state,
        since_ms=events[-1].ts // 1000 if events else None,
        published_ms=int(tag[TAG_TIME], 16),
        deliveries=len(claimed),
        holder=claimed[-1].worker if claimed else None,
        first_delivery_ms=claimed[0].ts // 1000 if claimed else None,
        last_delivery_ms=claimed[-1].ts // 1000 if claimed else None,
        queued_ms=queued_ms,
        worked_ms=worked_ms,
        events=tuple(events),
    )
