"""The messages of a broker for its operator: lists, single ones, and why one waits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_redis_plus.admin.explanation.explain import Explanation, Rate, explain
from celery_redis_plus.admin.holders import Holder, read_holders
from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR
from celery_redis_plus.broker.queues.held import read_held
from celery_redis_plus.broker.queues.listing import ListedMessage, State, list_messages, read_small, read_stored, waiting_tags

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.messages import Messages
    from celery_redis_plus.broker.queues.overview import QueueOverview


class MessageAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about messages; that class has what is declared here."""

    #: The messages of one queue.
    queue_messages: Messages

    def overview(self, *patterns: str, internal: bool = True) -> list[QueueOverview]:
        """Return the state of the queues that `patterns` name."""
        raise NotImplementedError

    def list_messages(self, queue: str, state: State, task: str | None = None, first: int = 0) -> Iterator[ListedMessage]:
        """Yield the messages of `queue` in one state, the next first; see `broker.queues.listing.list_messages`."""
        self.check_queue(queue)
        yield from list_messages(self._commands, self._keys, queue, state, task, first)

    def scheduled(self, *patterns: str, task: str | None = None) -> Iterator[ListedMessage]:
        """Yield the delayed messages of queues, the next due first.

        A queue's next page is read when it is needed. Raises as `queues` does.
        """
        queues = [one.queue for one in self.overview(*patterns) if one.delayed]
        listings = [list_messages(self._commands, self._keys, queue, "delayed", task) for queue in queues]
        yield from heapq.merge(*listings, key=attrgetter("time_ms"))

    def waiting_tags(self, queue: str, task: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the ids of the waiting messages of a task, see `broker.queues.listing.waiting_tags`."""
        self.check_queue(queue)
        yield from waiting_tags(self._commands, self._keys, queue, task)

    def cancel(self, queue: str, tags: Sequence[str], *, dead_letter: bool = False) -> list[str]:
        """Remove messages that no consumer has yet; return the ids of those that were there. See `Messages.cancel`."""
        with self.audit.action("cancel", queue, dead_letter=dead_letter or None) as action:
            cancelled = self.queue_messages.cancel(queue, tags, dead_letter=dead_letter)
            action.count = len(cancelled)
        return cancelled

    def give_back(self, queue: str, tags: Sequence[str], *, consumer: str | None = None) -> list[str]:
        """Take unacked messages from their consumers, or from one; return the ids that were taken. See `Messages.give_back`."""
        self.check_queue(queue)
        with self.audit.action("kick", queue, id=tags[0] if len(tags) == 1 else None) as action:
            session = None if consumer is None else consumer.partition(CONSUMER_ID_SEPARATOR)[0]
            given = self.queue_messages.give_back(queue, tags, session)
            action.count = len(given)
        return given

    def held_tags(self, queue: str, consumer: str) -> Iterator[tuple[int, list[str]]]:
        """Yield how many unacked messages were looked at for a page, and the ids of those that a consumer holds.

        `consumer` is its id, as `consumers` has it. The server knows holders by their connection: where that has several
        consumers of the queue, all of their messages are meant.
        """
        self.check_queue(queue)
        session = consumer.partition(CONSUMER_ID_SEPARATOR)[0]
        for looked_at, found in read_held(self._commands, self._keys, queue):
            yield looked_at, [one.tag for one in found if one.session == session]

    def holders(self, queue: str) -> dict[str, Holder]:
        """Return the process of each session that has unacked messages of `queue`, by the session; see `read_holders`."""
        return read_holders(self._commands, self._keys, queue)

    def stored(self, queue: str, tag: str) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Return a message's headers, properties and body; empty ones where it is gone."""
        return read_stored(self._commands, self._keys, queue, tag)

    def stored_small(self, queue: str, tag: str) -> tuple[dict[str, Any], dict[str, Any], bytes | None]:
        """Return as `stored` does, but None for a body over 1 MB."""
        return read_small(self._commands, self._keys, queue, tag)

    def explain(self, queue: str, id: str, rate: Rate | None = None) -> Explanation | None:  # noqa: A002 - what users know it by
        """Return why a message is where it is, by its id; None where `queue` knows nothing of it. See `explanation.explain`."""
        return explain(self._commands, self._keys, self._options, self.queue_messages, queue, id, rate=rate)
