"""Finds a message by its id, or by Celery's task id, in whatever queue it is, and acts on it there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.audit import Action
from celery_redis_plus.broker.queues.messages import MESSAGE_ID
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.audit import Audit
    from celery_redis_plus.broker.queues.listing import State
    from celery_redis_plus.broker.queues.messages import MessageInfo, Messages

logger = logging.getLogger(__name__)

#: Messages that are looked at for a task id that no index knows, where no queue is named: some 2 s.
MAX_SEARCHED: Final = 200_000
#: The states of messages that no consumer has yet, in the order in which a message passes them.
WAITING: Final[tuple[State, ...]] = ("delayed", "ready")
#: Gets a removed message: its queue, its id, envelope and body.
OnRemoved = Callable[[str, str, bytes, bytes], None]
EVERYWHERE: Final[tuple[State, ...]] = (*WAITING, "unacked", "dead")


@dataclass(slots=True)
class Searched:
    """What a search has looked at so far."""

    #: The id, and the queues that were looked into.
    id: str
    queues: int = 0
    #: Messages that were looked at one by one; None: the id led to its place, or an index did.
    messages: int | None = None
    #: In which states.
    states: tuple[State, ...] = ()

    def __str__(self) -> str:
        where = "1 queue was" if self.queues == 1 else f"{self.queues:,} queues were"
        if self.messages is None:
            return f"{where} asked for it, and for the last events"
        states = " or ".join(self.states)
        return f"{where} searched, {self.messages:,} messages that are {states}; finished ones are known with event_log_index"


class MessageSearch:
    """Searches queues. All methods raise as `Messages` does, and take one queue, or look into all of them.

    A task id that no index knows (`event_log_index`) is looked for in each message: of the named queue, else in `MAX_SEARCHED` at
    most. Where these were not all, and it was not among them, InvalidArgument asks for the queue.

    Args:
        messages: of the broker.
        queues: gives the names of all queues; asked when it is needed.
        waiting: where messages are looked for that no consumer has.
        audit: where actions are noted; None: nowhere.
    """

    def __init__(
        self,
        messages: Messages,
        queues: Callable[[], Iterable[str]],
        waiting: Sequence[State] = WAITING,
        *,
        audit: Audit | None = None,
    ) -> None:
        self._messages = messages
        self._audit = audit
        self._queues = queues
        self._waiting = waiting
        self._failures = KeyFailures(logger, "cannot be searched")
        #: Messages that are looked at where no queue is named; None: all.
        self.most: int | None = MAX_SEARCHED
        #: What the last search has looked at.
        self.searched = Searched("")
        #: Told how many messages were looked at, page by page.
        self.watch: Callable[[int], None] = lambda _: None

    def find(self, id: str, queue: str | None = None) -> MessageInfo | None:  # noqa: A002 - what users know it by
        """Return what is known of a message; None where it is not found. Of one that was moved, its present place."""
        moved = None
        for name, tags in self._candidates(id, queue, EVERYWHERE):
            found = None
            with self._alone(name, queue):
                found = self._messages.find(name, tags[-1])
            if found is not None and found.state != "MOVED":
                return found
            moved = moved or found
        return moved

    @contextmanager
    def _alone(self, name: str, queue: str | None) -> Iterator[None]:
        """Search a queue; where it is one of all, what its keys hold keeps no other from being searched."""
        try:
            yield
        except ResponseError as error:
            if queue is not None:
                raise
            self._failures.contain(error, name)

    def cancel(
        self,
        id: str,  # noqa: A002 - as above
        queue: str | None = None,
        *,
        dead_letter: bool = False,
        on_removed: OnRemoved | None = None,
    ) -> bool:
        """Remove a message that no consumer has yet; return whether it was there. `on_removed` gets what was removed."""
        with self._action("cancel", queue, id=id, dead_letter=dead_letter or None) as action:
            found = self._cancel(id, queue, dead_letter, on_removed)
            action.queue, action.count = found or queue, int(found is not None)
        return found is not None

    @contextmanager
    def _action(self, name: str, queue: str | None, **details: Any) -> Iterator[Action]:
        with nullcontext(Action()) if self._audit is None else self._audit.action(name, queue, **details) as action:
            yield action

    def _cancel(
        self,
        id: str,  # noqa: A002 - as above
        queue: str | None,
        dead_letter: bool,
        on_removed: OnRemoved | None,
    ) -> str | None:
        """Do as `cancel`; return the queue where it was."""
        for name, tags in self._candidates(id, queue, self._waiting):
            read: dict[str, tuple[bytes, bytes] | None] = {}
            removed: list[str] = []
            with self._alone(name, queue):
                read = {} if on_removed is None else {tag: self._messages.read(name, tag) for tag in tags}
                removed = self._messages.cancel(name, tags, dead_letter=dead_letter)
            for tag in removed:
                content = read.get(tag)
                if on_removed is not None and content is not None:
                    on_removed(name, tag, *content)
            if removed:
                return name
        return None

    def reschedule(self, id: str, eta: int | str, queue: str | None = None) -> bool:  # noqa: A002 - as above
        """Give a message that no consumer has yet another time, see `Messages.reschedule`; return whether it was there."""
        with self._action("reschedule", queue, id=id, eta=eta) as action:
            for name, tags in self._candidates(id, queue, self._waiting):
                with self._alone(name, queue):
                    if any(self._messages.reschedule(name, tag, eta) for tag in tags):
                        action.queue, action.count = name, 1
                        return True
        return False

    def prioritize(self, id: str, priority: int, queue: str | None = None) -> bool:  # noqa: A002 - as above
        """Give a message that no consumer has yet another priority, see `Messages.prioritize`; return whether it was there."""
        with self._action("prioritize", queue, id=id, priority=priority) as action:
            for name, tags in self._candidates(id, queue, self._waiting):
                for tag in tags:
                    done = False
                    with self._alone(name, queue):
                        done = self._messages.prioritize(name, tag, priority)
                    if done:
                        action.queue, action.count = name, action.count + 1
                if action.count:
                    return True
        return False

    def move(self, id: str, target: str, queue: str | None = None) -> str | None:  # noqa: A002 - as above
        """Move a message that no consumer has yet into the queue `target`; return its id there, None where it was not found."""
        with self._action("move", queue, id=id, to=target) as action:
            for name, tags in self._candidates(id, queue, self._waiting):
                for tag in tags:
                    moved = None
                    with self._alone(name, queue):
                        moved = self._messages.move(name, tag, target)
                    if moved is not None:
                        action.queue, action.count = name, 1
                        return moved
        return None

    def _candidates(
        self,
        id: str,  # noqa: A002 - as above
        queue: str | None,
        states: Sequence[State],
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield queues and the ids of messages there that are meant, the last published last; those that an index knows first."""
        names = [queue] if queue is not None else list(self._queues())
        self.searched = Searched(id, len(names))
        if MESSAGE_ID.fullmatch(id):
            yield from ((name, [id]) for name in names)
            return
        for name in names:
            tags: list[str] = []
            with self._alone(name, queue):
                tags = self._messages.of_task(name, id)
            if tags:
                yield name, tags
        self.searched.states, searched = tuple(states), 0
        self.searched.messages = 0
        for name in names:
            tags = []
            for looked_at, found in self._search(name, id, queue, states):
                if queue is None and self.most is not None and searched > self.most and looked_at and not tags:
                    raise InvalidArgument(
                        f"task {id} was not found among {searched:,} messages, and there are more; name its queue to look at all "
                        "of them"
                    )
                tags += found
                searched += looked_at
                self.searched.messages = searched
                self.watch(looked_at)
            if tags:
                # An id begins with its time.
                yield name, sorted(tags)

    def _search(
        self, name: str, task_id: str, queue: str | None, states: Sequence[State]
    ) -> Iterator[tuple[int, list[str]]]:  # fmt: skip
        """Yield what `Messages.search_task` does, up to what cannot be read."""
        pages = self._messages.search_task(name, task_id, states)
        while True:
            page = None
            with self._alone(name, queue):
                page = next(pages, None)
            if page is None:
                return
            yield page
