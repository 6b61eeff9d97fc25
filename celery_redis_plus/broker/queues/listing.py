"""Lists the messages of a queue that are ready, delayed, unacked or dead, and selects some of them by their task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from celery_redis_plus.broker.arguments.eta import PRIORITY_BAND_MS
from celery_redis_plus.broker.arguments.selection import is_of_task
from celery_redis_plus.broker.queue_failures import of_our_keys
from celery_redis_plus.connection.scans import scan_tags
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import Claimed, shown_envelope, split_payload, stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys, QueueKeys

State = Literal["ready", "delayed", "unacked", "dead"]
STATES: Final[tuple[State, ...]] = ("ready", "delayed", "unacked", "dead")
#: Messages that one script call reads, and bytes of payload after which it reads no further one.
LISTING_PAGE, LISTING_PAGE_BYTES = 100, 1_000_000
#: Fields of its hash that are read of each message.
LISTED = ("claim", "failed", "owner", "rank", "reason", "claimed", "priority")
#: Messages at which one script call looks for a text: some 1 ms of the server's time.
SEARCHED_A_CALL = 250


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message as a listing shows it.

    Attributes:
        tag: its id.
        queue, state: where it is.
        time_ms: ready: when it became so; delayed: when it is due; unacked: when its lease ends; dead: when it died. In ms since
            the epoch.
        deliveries, failures: how often it was delivered, and how many of these deliveries failed.
        holder, claimed_ms: the session that holds an unacked one, and since when; else None.
        changed_priority: the priority that an operator gave it; else None.
        headers, properties: as published; empty where they cannot be read.
        size: bytes of headers, properties and body; a body over 1 MB does not count.
        content_type, content_encoding: of the body.
        stored_body: the body; None where it is over 1 MB, or the payload cannot be read.
        reason: why a dead one died; else None.
    """

    tag: str
    queue: str
    state: State
    time_ms: int
    deliveries: int
    failures: int
    holder: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]
    size: int
    content_type: str | None = None
    content_encoding: str | None = None
    stored_body: bytes | None = None
    reason: str | None = None
    claimed_ms: int | None = None
    changed_priority: int | None = None

    @property
    def task(self) -> str | None:
        """The name of its Celery task; None for a message of another kind."""
        task = self.headers.get("task")
        return None if task is None else str(task)

    @property
    def task_id(self) -> str | None:
        """The id of its Celery task."""
        task_id = self.headers.get("id")
        return None if task_id is None or self.task is None else str(task_id)

    @property
    def routing_key(self) -> str:
        """The routing key that it was published with."""
        return str(self.properties.get("delivery_info", {}).get("routing_key") or "")

    @property
    def priority(self) -> int:
        """The priority with which it was published, or that an operator gave it since; 0 where that is no number."""
        priority = self.properties.get("priority") if self.changed_priority is None else self.changed_priority
        return priority if isinstance(priority, int) else 0


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a queue that one script call lists: up to `most` places from rank `first` on."""

    queue: str
    state: State
    first: int = 0
    most: int = LISTING_PAGE


def list_messages(
    commands: CommandConnection, keys: Keys, queue: str, state: State, task: str | None = None, first: int = 0
) -> Iterator[ListedMessage]:
    """Yield the messages of `queue` in one state from rank `first` on, the next first; a page is read when it is needed.

    What comes or goes meanwhile may be missed, or met twice. `task` is a name, or a pattern with `*`, `?`, `[…]`.
    Raises as `CommandConnection.call` does.
    """
    rank = first
    while True:
        checked, page = read_page(commands, keys, Page(queue, state, rank))
        yield from (message for message in page if is_of_task(message.headers, task))
        rank += checked
        if not checked:
            return


def read_page(commands: CommandConnection, keys: Keys, wanted: Page) -> tuple[int, list[ListedMessage]]:
    """Return how many places were looked at, and the messages there; 0 places: there are no more.

    Raises as `CommandConnection.call` does.
    """
    of = keys.queue(wanted.queue)
    ageing = int(commands.command("HGET", of.meta, "ageing") or 0) if wanted.state == "ready" else 0
    checked, entries = _read_entries(commands, of, wanted.state, wanted.first, min(wanted.most, LISTING_PAGE), LISTED)
    return checked, [_message(wanted.queue, wanted.state, ageing, entry) for entry in entries]


def read_copies(
    commands: CommandConnection, keys: Keys, queue: str, first: int, most: int
) -> tuple[int, list[Claimed]]:  # fmt: skip
    """Return how many places from rank `first` on were looked at, and copies of the ready messages there, which nobody claims.

    Raises as `list_messages` does.
    """
    of = keys.queue(queue)
    checked, entries = _read_entries(commands, of, "ready", first, most, ("claim", "failed", "seen"))
    copies = []
    for tag, _, payload, claims, failed, seen in entries:
        envelope, body = split_payload(payload)
        failures = stored_number(failed)
        redelivered = bool(seen) or bool(failures)
        copies.append(Claimed(decode_name(tag), queue, stored_number(claims), failures, redelivered, envelope, body))
    return checked, copies


def waiting_page(commands: CommandConnection, keys: Keys, queue: str, first: int, most: int) -> list[str]:
    """Return the ids of ready messages from rank `first` on, `most` at most; those that their groups hold back come last."""
    of = keys.queue(queue)
    found = commands.command("ZRANGE", of.ready, first, first + most - 1)
    if len(found) < most:
        behind = max(0, first - commands.command("ZCARD", of.ready))
        found = [*found, *commands.command("ZRANGE", of.held, behind, behind + most - len(found) - 1)]
    return [decode_name(tag) for tag in found]


def _read_entries(
    commands: CommandConnection, of: QueueKeys, state: State, first: int, most: int, fields: Sequence[str]
) -> tuple[int, list[list[Any]]]:  # fmt: skip
    """Return how many places from rank `first` on were looked at, and of each message there tag, score, payload and `fields`."""
    place, *behind = _places(of, state)
    _, checked, *found = commands.call(
        script("list_messages"), [place, of.message, *behind], first, most, LISTING_PAGE_BYTES, *fields
    )  # fmt: skip
    width = 3 + len(fields)
    return checked, [found[at : at + width] for at in range(0, len(found), width)]


def waiting_tags(commands: CommandConnection, keys: Keys, queue: str, task: str) -> Iterator[tuple[int, list[str]]]:
    """Yield how many waiting messages were looked at for a page, and the ids of those of the task `task`, a name or a pattern.

    Ready and delayed ones: all that wait from the beginning to the end are found, see `read_headers`. Raises as `list_messages`.
    """
    for looked_at, found in read_headers(commands, keys, queue, ("delayed", "ready")):
        yield looked_at, [tag for tag, headers in found if is_of_task(headers, task)]


def read_headers(
    commands: CommandConnection, keys: Keys, queue: str, states: Sequence[State]
) -> Iterator[tuple[int, list[tuple[str, dict[str, Any]]]]]:
    """Yield how many messages were looked at for a page, and the ids and headers of those that are still there.

    All that stay in one of `states` from the beginning to the end are found, see `scan_tags`. Raises as `list_messages`.
    """
    of = keys.queue(queue)
    for state in states:
        tags = [tag for place in _places(of, state) for tag, _ in scan_tags(commands, place)]
        for at in range(0, len(tags), LISTING_PAGE):
            page = tags[at : at + LISTING_PAGE]
            payloads = of_our_keys(commands.pipeline([("HGET", of.message + encode_name(tag), "payload") for tag in page]))
            found = zip(page, payloads, strict=True)
            lines = [(tag, split_payload(payload)[0]) for tag, payload in found if isinstance(payload, bytes)]
            yield len(page), [(tag, shown_envelope(line)["headers"]) for tag, line in lines]


def search_headers(
    commands: CommandConnection, keys: Keys, queue: str, states: Sequence[State], text: str
) -> Iterator[tuple[int, list[tuple[str, dict[str, Any]]]]]:
    """Yield how many messages were looked at for a page, and the ids and headers of those that have a text in their envelope.

    The server compares, so that only these come over the network. All are found that stay in one of `states` meanwhile: a place
    between scores is kept from page to page, and heartbeats move unacked messages only forward. Dead messages on their way to an
    exchange are dead ones. Raises as `list_messages` does.
    """
    of = keys.queue(queue)
    # Envelopes are JSON of ASCII; what stands there otherwise than here is left to the caller to compare.
    wanted = text if text.isascii() and text.isprintable() and not set(text) & set('"\\') else ""
    places = [place for state in states for place in ((of.dlx_outbox, of.dead) if state == "dead" else _places(of, state))]
    for place in places:
        reached = b""
        while True:
            reached, looked_at, *found = commands.call(
                script("search_messages"), [place, of.message], wanted, reached, SEARCHED_A_CALL, LISTING_PAGE_BYTES
            )
            lines = zip(found[::2], found[1::2], strict=True)
            yield looked_at, [(decode_name(tag), shown_envelope(line)["headers"]) for tag, line in lines]
            if not reached:
                break


def read_stored(commands: CommandConnection, keys: Keys, queue: str, tag: str) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return a message's headers, properties and body; empty ones where it is gone. Raises as `list_messages` does."""
    headers, properties, body = read_small(commands, keys, queue, tag)
    if body is None:
        body = commands.command("HGET", keys.queue(queue).message + encode_name(tag), "body") or b""
    return headers, properties, body


def read_small(
    commands: CommandConnection, keys: Keys, queue: str, tag: str
) -> tuple[dict[str, Any], dict[str, Any], bytes | None]:  # fmt: skip
    """Return as `read_stored` does, but None for a body over 1 MB, which would keep the server busy for milliseconds."""
    payload: bytes | None = commands.command("HGET", keys.queue(queue).message + encode_name(tag), "payload")
    if payload is None:
        return {}, {}, b""
    line, body = split_payload(payload)
    envelope = shown_envelope(line)
    return envelope["headers"], envelope["properties"], body


def _places(of: QueueKeys, state: State) -> tuple[bytes, ...]:
    """Return where messages in a state are; those that their groups hold back are ready, behind all others."""
    return {"ready": (of.ready, of.held), "delayed": (of.delayed,), "unacked": (of.index,), "dead": (of.dead,)}[state]


def _message(queue: str, state: State, ageing: int, fields: list[bytes]) -> ListedMessage:
    tag, score, payload, claims, failed, owner, rank, reason, claimed, priority = fields
    time_ms = stored_number(score)
    if state == "ready":
        time_ms = time_ms - stored_number(rank) * ageing if ageing else time_ms % PRIORITY_BAND_MS
    line, body = split_payload(payload)
    envelope = shown_envelope(line)
    return ListedMessage(
        tag=decode_name(tag),
        queue=queue,
        state=state,
        time_ms=time_ms,
        deliveries=stored_number(claims),
        failures=stored_number(failed),
        holder=owner.decode("utf-8", "replace") or None if state == "unacked" else None,
        headers=envelope["headers"],
        properties=envelope["properties"],
        size=len(payload),
        content_type=envelope.get("content-type"),
        content_encoding=envelope.get("content-encoding"),
        stored_body=body if "content-type" in envelope else None,
        reason=reason.decode("utf-8", "replace") or None if state == "dead" else None,
        claimed_ms=stored_number(claimed) or None if state == "unacked" else None,
        changed_priority=stored_number(priority) if priority else None,
    )
