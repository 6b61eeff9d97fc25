"""A queue's dead letters: listed, moved on to a dead-letter exchange, replayed, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.eta import PRIORITY_BAND_MS
from celery_redis_plus.broker.arguments.expiry import life_of
from celery_redis_plus.broker.arguments.queue_arguments import check_queue_name
from celery_redis_plus.broker.consumers.last_error import Failure, failure_by, read_failure
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.dead_letters.x_death import DeathEntry, record_death, record_failure
from celery_redis_plus.broker.queue_failures import of_our_keys
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.event_log.metadata import describe
from celery_redis_plus.events import pack_text
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import (
    BODY_SEPARATOR,
    UnreadableMessageError,
    read_envelope,
    replayed,
    split_payload,
    stored_number,
    unreadable,
)

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

#: Messages that one script call reads or deletes, and bytes of payload after which it stops reading.
DEAD_LETTER_PAGE, DEAD_LETTER_PAGE_BYTES = 100, 1_000_000
#: Answers of the move script: the message is gone; no target has a record.
ALREADY_GONE, NO_TARGET = -1, -2

#: Fields of its hash that `list_messages` reads of each dead letter.
LISTED = ("reason", "failed", "claim", "score", "rank", "error")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that died in `queue`."""

    tag: str
    queue: str
    #: `rejected`, `expired`, `delivery_limit`, `maxlen`, `unroutable`, …
    reason: str
    #: When it died, ms since the epoch, on the server's clock.
    died_ms: int
    #: How many deliveries failed, and how many there were.
    failures: int
    deliveries: int
    #: Where its score puts it among priorities: 0 first.
    rank: int
    #: Headers and properties as they were published.
    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str | None
    content_encoding: str | None
    #: None where it is over 1 MB: `DeadLetters.body` fetches it.
    body: bytes | None
    #: Its payload cannot be read. It has no headers or properties then, and `body` is the payload as it is stored.
    damaged: bool = False
    #: The exception with which the work on it ended last; None where no consumer has said so.
    failure: Failure | None = None

    @property
    def exchange(self) -> str:
        """The exchange that it was published to."""
        return str(self._delivery_info.get("exchange") or "")

    @property
    def routing_key(self) -> str:
        """The routing key that it was published with."""
        return str(self._delivery_info.get("routing_key") or "")

    @property
    def _delivery_info(self) -> dict[str, Any]:
        info: dict[str, Any] = self.properties.get("delivery_info", {})
        return info

    @property
    def task(self) -> str | None:
        """The name of its Celery task; None for a message of another kind."""
        task = self.headers.get("task")
        return None if task is None else str(task)

    @property
    def death(self) -> DeathEntry:
        """How it died."""
        expiration = self.properties.get("expiration") if self.reason == "expired" else None
        return DeathEntry(self.queue, self.reason, self.died_ms, self.exchange, self.routing_key, expiration)

    @property
    def death_headers(self) -> dict[str, Any]:
        """Its headers with this death in `x-death`, as RabbitMQ writes it, and its exception."""
        return record_failure(record_death(self.headers, self.death), self.failure)


@dataclass(frozen=True, slots=True)
class Move:
    """A dead message on its way to other queues, ready to be stored there."""

    letter: DeadLetter
    targets: Sequence[str]
    #: The (exchange, routing key) by which its dead-letter exchange sends it on; None: it is put back to work.
    routing: tuple[str, str] | None
    payload: bytes
    #: Its life there, as `stored_message.Outgoing` has it.
    life: str
    #: What the event of its publishing there tells of it.
    description: str

    @classmethod
    def of(cls, letter: DeadLetter, targets: Sequence[str], routing: tuple[str, str] | None = None) -> Move:
        """Make a message ready.

        Raises:
            UnreadableMessageError: it cannot be written again, with its death in its headers.
        """
        try:
            payload, life = payload_of(letter, routing)
            description = describe(letter.headers, letter.properties, body_size=len(letter.body or b""), source_id=letter.tag)
            for name in targets:
                # A routing key that names a queue may be a text that no key can have.
                check_queue_name(name)
        except Exception as error:
            raise unreadable(error) from error
        return cls(letter, targets, routing, payload, life, description)

    def to(self, targets: Sequence[str]) -> Move:
        """Return the same message on its way to other queues."""
        return replace(self, targets=targets)


class DeadLetters:
    """The dead letters of all queues, over one connection."""

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    def count(self, queue: str) -> int:
        """Return how many dead letters the queue keeps."""
        return int(self._commands.command("ZCARD", self._keys.queue(queue).dead))

    def lost_by(self, queue: str, count: int, most: int) -> int:
        """Return how many dead letters go for good if `count` more messages of `queue` die, and it keeps `most`.

        A transient queue keeps none. One with a dead-letter exchange loses none: they go on to that.
        """
        meta, dead = self._keys.queue(queue).meta, self._keys.queue(queue).dead
        (ttl, exchange), kept = self._commands.ask([("HMGET", meta, "ttl", "dlx"), ("ZCARD", dead)])
        if count == 0 or exchange is not None:
            return 0
        return count if ttl is not None else max(0, int(kept) + count - most)

    def lost(self, queue: str) -> int:
        """Return how many dead letters of `queue` went for good: by `dead_letter_max` and age, or as it is transient."""
        counts = self._commands.command("HMGET", self._keys.queue(queue).meta, "dead_evicted", "discarded")
        return sum(int(count or 0) for count in counts)

    def page(self, queue: str, first: int = 0, limit: int = DEAD_LETTER_PAGE, *, newest: bool = False) -> list[DeadLetter]:
        """Return up to `limit` dead letters from rank `first` on, the longest dead first, or with `newest` the last one."""
        dead = self._keys.queue(queue).dead
        if not newest:
            return self._read(queue, dead, first, limit)
        last = max(0, self.count(queue) - first)
        return self._read(queue, dead, max(0, last - limit), min(limit, last))[::-1]

    def all(self, queue: str) -> Iterator[DeadLetter]:
        """Yield the dead letters, the longest dead first; those that die or go meanwhile may be missed or left out."""
        first = 0
        while page := self.page(queue, first):
            yield from page
            first += DEAD_LETTER_PAGE

    def read(self, queue: str, tags: Sequence[str]) -> list[DeadLetter]:
        """Return those of the messages that are dead letters, in the order of `tags`; one command a message."""
        message = self._keys.queue(queue).message
        fields = ("died", "payload", *LISTED)
        looks = [("HMGET", message + encode_name(tag), *fields) for tag in tags]
        replies = of_our_keys(self._commands.pipeline(looks) if looks else ())
        return [
            letter_of(queue, [encode_name(tag), *(value or b"" for value in found)])
            for tag, found in zip(tags, replies, strict=True)
            if found is not None and found[0] is not None
        ]

    def body(self, letter: DeadLetter) -> bytes | None:
        """Return the body, also a large one; None where the message is gone by now."""
        if letter.body is not None:
            return letter.body
        key = self._keys.queue(letter.queue).message + encode_name(letter.tag)
        body: bytes | None = self._commands.command("HGET", key, "body")
        return body

    def replay(self, letter: DeadLetter, to: str | Sequence[str] | None = None) -> bool:
        """Put a dead letter back to work: to its queue, or to the queue or queues `to`; return False where it is gone by now.

        It has its original priority, fresh counters, and its deaths in the headers. It does not expire again, and is no
        duplicate of what it was: Celery's `expires` and its deduplication are taken off.

        Raises:
            InvalidArgument: it would go to the reserved queue of undelivered messages, which has no consumer; or it cannot be
                written again. It stays.
            QueueNotFound: no such queue; the dead letter stays.
        """
        targets = [letter.queue] if to is None else [to] if isinstance(to, str) else list(to)
        (taken,) = self.replay_all([replay_of(letter, targets)])
        if taken == NO_TARGET:
            raise QueueNotFound(no_target(letter, targets))
        return taken > 0

    def replay_all(self, replays: Sequence[Move]) -> list[int]:
        """Put dead letters back to work, each to its queues, in one write and one script call each; see `replay_of`.

        Returns:
            For each how many queues took it, ALREADY_GONE, or NO_TARGET: nothing has changed then.
        """
        return self._move_all(
            self._call(one, self._keys.queue(one.letter.queue).dead, "replayed", keep_tag=one.targets == [one.letter.queue])
            for one in replays
        )

    def delete(self, queue: str, tags: Sequence[str]) -> int:
        """Delete dead letters for good; return how many there were."""
        of = self._keys.queue(queue)
        deleted = 0
        for at in range(0, len(tags), DEAD_LETTER_PAGE):
            page = tags[at : at + DEAD_LETTER_PAGE]
            deleted += int(self._commands.call(script("delete_dead"), [of.dead, of.trash, of.message, of.meta], *page))
        return deleted

    def purge(self, queue: str, progress: Callable[[int], object] = lambda _: None) -> int:
        """Delete all dead letters of the queue for good; return how many there were. `progress` is told of each batch."""
        of = self._keys.queue(queue)
        purged = int(self._commands.call(script("delete_dead"), [of.dead, of.trash, of.message, of.meta]))
        while freed := int(self._commands.call(script("empty_trash"), [of.trash, of.message, of.meta], DEAD_LETTER_PAGE, "")):
            progress(freed)
        return purged

    # -- on the way to a dead-letter exchange -----------------------------------------------------------------------------

    def awaiting_dlx(self, queue: str) -> list[DeadLetter]:
        """Return some of the messages that wait for the dead-letter exchange, the longest dead first."""
        return self._read(queue, self._keys.queue(queue).dlx_outbox, 0, DEAD_LETTER_PAGE)

    def forward_all(self, forwards: Sequence[Move]) -> list[int | Exception]:
        """Forward dying messages in one write; return as `replay_all` does. Raises as `CommandConnection.call` does.

        Where it was refused for what the keys hold, of the queue or of a target, the error stands in the list.
        """
        return self._move_each(self._call(one, self._keys.queue(one.letter.queue).dlx_outbox, "forwarded") for one in forwards)

    def move_here(self, move: Move, source: bytes, counter: str) -> int:
        """Move one message from the set `source` into queues of this broker; return as `replay_all` does."""
        return self._move_all([self._call(move, source, counter)])[0]

    def outbox(self, queue: str) -> bytes:
        """Return the set of the messages that wait for the dead-letter exchange of a queue."""
        return self._keys.queue(queue).dlx_outbox

    def places_of(self, queue: str) -> tuple[bytes, bytes]:
        """Return the prefix of the messages of a queue, and its record."""
        of = self._keys.queue(queue)
        return of.message, of.meta

    def _move_all(self, moves: Iterable[tuple[list[bytes], list[Argument]]]) -> list[int]:
        taken = self._move_each(moves)
        refused = next((one for one in taken if isinstance(one, Exception)), None)
        if refused is not None:
            raise refused
        return [one for one in taken if not isinstance(one, Exception)]

    def _move_each(self, moves: Iterable[tuple[list[bytes], list[Argument]]]) -> list[int | Exception]:
        taken: list[int | Exception] = []

        def done(reply: Any, error: Exception | None) -> None:
            taken.append(int(reply) if error is None else error)

        for keys, arguments in moves:
            self._commands.send_nowait(script("move_dead_letter"), keys, *arguments, done=done, buffered=True)
        self._commands.read_until()
        for one in taken:
            if isinstance(one, Exception) and not concerns_keys(one):
                raise one
        return taken

    def keep(self, queue: str, errors: Mapping[str, BaseException | None]) -> tuple[int, int]:
        """Put dying messages into the queue's own store; return how many are kept, and how many a transient queue discarded.

        `errors` has for each tag what kept the message from being sent on; None where its exchange takes it nowhere.
        """
        of = self._keys.queue(queue)
        pairs: list[Argument] = []
        for tag, error in errors.items():
            pairs += (encode_name(tag), "" if error is None else failure_by(error).packed())
        kept, discarded = self._commands.call(script("store_dead_letters"), [of.dlx_outbox, of.dead, of.message, of.meta], *pairs)
        return int(kept), int(discarded)

    def _call(
        self, move: Move, source: bytes, counter: str, *, keep_tag: bool = False
    ) -> tuple[list[bytes], list[Argument]]:  # fmt: skip
        """Return keys and arguments of the script that moves a message from the set `source`."""
        of = self._keys.queue(move.letter.queue)
        keys = [source, of.message, of.meta]
        for name in move.targets:
            keys += self._keys.queue(name).publish
        names = [pack_text(name) for name in move.targets]
        tag = encode_name(move.letter.tag)
        return keys, [tag, move.payload, counter, int(keep_tag), move.life, move.description, *names]

    def _read(self, queue: str, key: bytes, first: int, limit: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        rank = first
        while rank - first < limit:
            page = rank, min(DEAD_LETTER_PAGE, first + limit - rank), DEAD_LETTER_PAGE_BYTES
            _, checked, *found = self._commands.call(
                script("list_messages"), [key, self._keys.queue(queue).message], *page, *LISTED
            )
            width = 3 + len(LISTED)
            letters += [letter_of(queue, found[at : at + width]) for at in range(0, len(found), width)]
            rank += checked
            if not checked:
                break
        return letters


def replay_of(letter: DeadLetter, targets: Sequence[str]) -> Move:
    """Return a dead letter on its way back to work, in the queues `targets`.

    Raises:
        InvalidArgument: one of them is the reserved queue of undelivered messages; or the message cannot be written again.
    """
    check_targets(letter, targets)
    try:
        return Move.of(letter, targets)
    except UnreadableMessageError as error:
        why = failure_by(error.error).text
        raise InvalidArgument(
            f"the dead letter {letter.tag} cannot be written again ({why}): it stays; allowed is to delete it"
        ) from error


def check_targets(letter: DeadLetter, targets: Sequence[str]) -> None:
    """Raise InvalidArgument where one of the queues is the reserved one, which has no consumers."""
    if UNDELIVERED in targets:
        raise InvalidArgument(
            f"the dead letter {letter.tag} cannot be replayed to {UNDELIVERED!r}, which has no consumer: name another queue"
        )


def no_target(letter: DeadLetter, targets: Sequence[str]) -> str:
    """Say that no queue took a dead letter."""
    return f"queue {targets[0]!r} does not exist: the dead letter {letter.tag} stays where it is"


def letter_of(queue: str, fields: Sequence[bytes]) -> DeadLetter:
    """Return a dead letter: its tag, the time of its death, its payload, and the fields `LISTED`; b'' for what there is not."""
    tag, died, payload, reason, failures, claims, score, rank, error = fields
    level = stored_number(rank) if rank else stored_number(score) // PRIORITY_BAND_MS
    counts = stored_number(failures), stored_number(claims), level
    death = decode_name(tag), queue, reason.decode("utf-8", "replace"), stored_number(died), *counts
    failure = read_failure(error.decode("utf-8", "surrogateescape"))
    envelope, body = split_payload(payload)
    try:
        data = read_envelope(envelope)
    except UnreadableMessageError:
        return DeadLetter(*death, {}, {}, None, None, payload, damaged=True, failure=failure)
    about = data["headers"], data["properties"], data.get("content-type"), data.get("content-encoding")
    return DeadLetter(*death, *about, body, failure=failure)


def payload_of(letter: DeadLetter, routing: tuple[str, str] | None) -> tuple[bytes, str]:
    """Return the payload with which a dead message goes on, and its life there.

    RabbitMQ takes `expiration` off, whatever a message died of, so that it does not expire in the queues it is routed to.
    Celery's `expires` stays with a task that goes to a dead-letter exchange: a worker revokes it then. One that is put back to
    work has no expiry (`stored_message.replayed`).
    """
    if letter.damaged:
        return letter.body or b"", ""
    if routing is None:
        headers, properties = replayed(letter.death_headers, letter.properties)
    else:
        exchange, routing_key = routing
        headers = letter.death_headers
        properties = {name: value for name, value in letter.properties.items() if name != "expiration"}
        properties["delivery_info"] = {**properties["delivery_info"], "exchange": exchange, "routing_key": routing_key}
    envelope = {
        "content-type": letter.content_type,
        "content-encoding": letter.content_encoding,
        "headers": headers,
        "properties": properties,
    }
    payload = json.dumps(envelope, separators=(",", ":")).encode("ascii")
    try:
        life = life_of(headers, None)
    except InvalidArgument:
        # It was published before that was checked.
        life = ""
    return (payload if letter.body is None else payload + BODY_SEPARATOR + letter.body), life
