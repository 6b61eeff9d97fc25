"""Looking at the messages of a queue without taking them: `browse`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kombu.serialization import prepare_accept_content
from kombu.transport import base

from celery_redis_plus.broker.queues.listing import LISTING_PAGE, STATES, ListedMessage, Page, State, read_page
from celery_redis_plus.broker.queues.overview import read_overview
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.transport.api import channel_of

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class BrowsedMessage(ListedMessage):
    """A message that was looked at; it stays where it is. Its attributes are those of `ListedMessage`."""

    def decode(self, accept: Iterable[str] | None = None) -> Any:
        """Return what was published, as kombu's serializer reads the body.

        Args:
            accept: content types or serializers to read; None: all that kombu has enabled (neither pickle nor YAML).

        Raises:
            InvalidArgument: the body is over 1 MB, or the stored message is damaged.
            kombu.exceptions.ContentDisallowed, kombu.exceptions.DecodeError: as `kombu.Message.decode`.
        """
        if self.stored_body is None:
            raise InvalidArgument(f"message {self.tag} has a body over 1 MB, or is damaged; allowed are others: consume this one")
        return base.Message(
            self.stored_body, self.tag, self.content_type, self.content_encoding, self.properties.get("delivery_info") or {},
            self.properties, dict(self.headers), None, prepare_accept_content(accept),
        ).decode()  # fmt: skip


def browse(
    queue: str, *, connection: Any, state: State | None = None, first: int = 0, limit: int | None = None
) -> Iterator[BrowsedMessage]:  # fmt: skip
    """Yield the messages of `queue` and leave them where they are: no claim, no counter and no event tells of it.

    They come in pages of up to 100, or 1 MB, each when it is needed: one short script call. Ready messages come in the order of
    delivery, delayed ones by their due time, unacked ones by the end of their lease, dead ones by their death. A message
    that comes or goes meanwhile may be missed, or met twice.

    Args:
        queue: its name.
        connection: a kombu Connection or channel over our transport, or a Celery app.
        state: `ready`, `delayed`, `unacked` or `dead`; None: all of them, in this order.
        first: how many messages of `state` to pass over, to go on where another call has ended.
        limit: how many messages to yield at most; None is no limit.

    Raises:
        InvalidArgument: another `state`; `first` without a `state`, or below 0; `limit` below 0.
        kombu.exceptions.ChannelError: there is no such queue (404).
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    if state is not None and state not in STATES:
        raise InvalidArgument(f"argument 'state' of browse is {state!r}; allowed are {', '.join(STATES)}, and None")
    if first < 0 or (first and state is None):
        raise InvalidArgument(f"argument 'first' of browse is {first!r}; allowed is a number from 0 on, with a state")
    if limit is not None and limit < 0:
        raise InvalidArgument(f"argument 'limit' of browse is {limit!r}; allowed is a number from 0 on, and None")
    _check_queue(queue, connection)
    return _messages(queue, connection, STATES if state is None else (state,), first, limit)


def _messages(
    queue: str, connection: Any, states: Iterable[State], first: int, limit: int | None
) -> Iterator[BrowsedMessage]:  # fmt: skip
    left = limit
    for state in states:
        rank, checked = first, 1
        while checked and left != 0:
            checked, page = _page(queue, connection, state, rank, LISTING_PAGE if left is None else left)
            yield from page
            rank += checked
            left = None if left is None else left - len(page)


def _check_queue(queue: str, connection: Any) -> None:
    with channel_of(connection) as channel:
        session = channel.of_queue(queue).session
        read_overview(session.commands, session.keys, queue)


def _page(queue: str, connection: Any, state: State, first: int, most: int) -> tuple[int, list[BrowsedMessage]]:
    # A channel for each page: a slow reader, or one that stops early, keeps none of an app's connections.
    with channel_of(connection) as channel:
        session = channel.of_queue(queue).session
        checked, page = read_page(session.commands, session.keys, Page(queue, state, first, most))
    return checked, [BrowsedMessage(*(getattr(one, field.name) for field in fields(one))) for one in page]
