"""What readers ask of the event logs of a broker, whether it is one (`stream.EventLog`) or several shards.

The events of a queue are known by a *name*, which is the queue's. A queue may also have events on a shard that is not its own,
where it was before shards were added. They are known by another name.
"""

from __future__ import annotations

import fnmatch
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from celery_redis_plus.errors import InvalidArgument, NoEvents

if TYPE_CHECKING:
    from celery_redis_plus.event_log.offsets import Offsets
    from celery_redis_plus.keys import QueueKeys

logger = logging.getLogger(__name__)

#: A stream entry as the server gives it: id, and its fields and values in one list.
Entry = Sequence[Any]

T = TypeVar("T")

#: Characters that make a name a pattern.
_WILD = frozenset("*?[")


class EventLogs(ABC):
    """The event logs of a broker; a context manager that opens its connections when they are first used."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the connections; the next use opens others."""

    @abstractmethod
    def ping(self) -> None:
        """See that the servers answer.

        Raises:
            ServerUnreachable: and its kin from `errors`.
        """

    # ---- names

    @abstractmethod
    def queues(self, wanted: str = "*") -> list[str]:
        """Return the names of the queues that have events and that `wanted` names, sorted.

        Args:
            wanted: names or patterns (`*`, `?`, `[...]`), separated by commas, or as a JSON list where a name has a comma.

        Raises:
            NoEvents: no queue has events, or a queue that is named in full has none.
            InvalidArgument: `wanted` is neither.
        """

    def readable(self, wanted: str = "*") -> list[str]:
        """Return what `queues` does, without the queues whose events cannot be read: these are logged.

        Somebody else has written one of their keys of events, or a later release writes there.

        A queue that is named in full stays: the reader raises what is wrong with it.
        """
        queues, named = self.queues(wanted), names_in(wanted)
        _, foreign = self.sound_numberings(queues, strict=False)
        for queue, error in foreign.items():
            if queue not in named:
                log_passed_over(queue, error)
        return [queue for queue in queues if queue not in foreign or queue in named]

    @abstractmethod
    def queue_of(self, name: str) -> str:
        """Return the queue whose events are known by a name."""

    @abstractmethod
    def shard_of(self, name: str) -> int:
        """Return the number of the shard that has these events."""

    @property
    @abstractmethod
    def unreachable(self) -> Mapping[int, Exception]:
        """The shards that could not be reached when they were asked last, by their numbers, and why."""

    # ---- what they have

    @abstractmethod
    def numberings(self, queues: Sequence[str], *, strict: bool = True) -> dict[str, Offsets]:
        """Return what the stream of each queue has now.

        Args:
            queues: their names.
            strict: refuse a stream whose ids do not count its events, since losses could not be told.

        Raises:
            UnknownEventSchema: a later release wrote there.
            EventsLost: a stream was deleted and begun anew under the same numbers.
        """

    @abstractmethod
    def sound_numberings(
        self, queues: Sequence[str], *, strict: bool = True
    ) -> tuple[dict[str, Offsets], dict[str, Exception]]:  # fmt: skip
        """Return what `numberings` does, and by queue the error where its events cannot be read.

        Somebody else has written one of its keys of events, or a later release writes there, or its shard cannot be reached.

        Raises:
            EventsLost: as `numberings`.
        """

    @abstractmethod
    def chunks(self, queue: str, epoch: int, low: int, high: int, size: int) -> Iterator[list[Entry]]:
        """Yield the entries `epoch`-`low` to `epoch`-`high` in lists of at most `size`; one that was trimmed is missing.

        The next ones are asked for before a list is handed out, so that the server works while the caller decodes. A payload may
        have 1 MB: a list has 32 MB of them at most, and so has a reply. Small replies come first, and grow where none has one.
        """

    @abstractmethod
    def first_after(self, numbering: Offsets, ms: int) -> int:
        """Return the position before the first event whose `ts` is `ms` (since the epoch) or later, by bisection.

        The server's clock may have been set back; the position is then one of the possible ones.
        """

    # ---- for commands of the callers' own

    @abstractmethod
    def parts(self, queues: Collection[str]) -> Iterator[tuple[LogServer, dict[str, QueueKeys]]]:
        """Yield each broker that has some of the events, and the keys of these queues there by their names."""

    @abstractmethod
    def everywhere(self, queue: str) -> Iterator[tuple[LogServer, QueueKeys]]:
        """Yield each broker that may have messages or events of a queue, and its keys there."""

    def of(self, name: str) -> tuple[LogServer, QueueKeys]:
        """Return the broker that has these events, and the keys of their queue there."""
        ((own, keys),) = self.parts([name])
        return own, keys[name]

    def reached(self, name: str, question: Callable[[LogServer, QueueKeys], T]) -> T | None:
        """Return the answer of the broker that has these events; None of one that is gone on without (`unreachable`).

        Raises what the question does.
        """
        return question(*self.of(name))


class LogServer(EventLogs):
    """The event logs of one broker, or shard, which can be asked by commands of the callers' own."""

    @abstractmethod
    def ask(
        self, commands: Sequence[tuple[Any, ...]], *, missing_ok: bool = False, foreign_ok: bool = False
    ) -> list[Any]:  # fmt: skip
        """Run commands in one round trip and return their replies.

        Args:
            commands: each a command and its arguments.
            missing_ok: None instead of an error for a key that does not exist.
            foreign_ok: the error stands among the replies for a key of another type.

        Raises:
            ServerUnreachable: and its kin from `errors`; what the server said, and what to do.
            WrongKeyType: a key is not ours.
        """

    @abstractmethod
    def mark(self) -> bytes | None:
        """Return the mark of the database (`lua/database_id.lua`); None where it has none, or does not tell. Raises as `ask`."""


def log_passed_over(queue: str, error: Exception) -> None:
    """Say that the events of `queue` are passed over, and why."""
    logger.error("the events of queue %r cannot be read, others are: %s", queue, error, extra={"queue": queue})


def names_in(wanted: str) -> list[str]:
    """Return the names and patterns in `wanted`: separated by commas, or a JSON list.

    Raises:
        InvalidArgument: there are none, or the JSON is none.
    """
    names: Any = None
    if wanted.lstrip().startswith("["):
        try:
            names = json.loads(wanted)
        except ValueError:
            # A pattern may begin with a bracket as well.
            names = None
    if not isinstance(names, list):
        names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"queues {wanted!r} is not allowed; allowed: names or patterns separated by commas, or a JSON list")
    return list(names)


def chosen(
    known: Mapping[str, str], wanted: str, where: str, may_be_elsewhere: Callable[[str], bool] = lambda _queue: False
) -> list[str]:  # fmt: skip
    """Return the names that `wanted` names, as `EventLogs.queues` does and raises.

    Args:
        known: name -> queue, of all that have events.
        wanted: as of `EventLogs.queues`.
        where: the broker is, for errors.
        may_be_elsewhere: whether a queue that is not known may have events on a shard that cannot be asked.
    """
    if not known:
        raise NoEvents(
            f"no queue {where} has events. Switch the event log on (event_log=True) in the application, and check prefix and "
            "database number"
        )
    names = names_in(wanted)
    queues = {*known, *known.values()}
    unknown = [name for name in names if not _WILD & set(name) and name not in queues and not may_be_elsewhere(name)]
    if unknown:
        raise NoEvents(f"queue {unknown[0]!r} has no events; queues that have: {', '.join(sorted(known))}")

    def is_wanted(name: str, want: str) -> bool:
        return any(text == want or fnmatch.fnmatchcase(text, want) for text in (name, known[name]))

    return sorted(name for name in known if any(is_wanted(name, want) for want in names))
