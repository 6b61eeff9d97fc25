"""Positions in a queue's events as plain numbers, so that limits, lag and losses are arithmetic.

Events carry ids `EPOCH-N`, dense within an epoch (see `events.py`). The *index* of an event counts them over all epochs of the
stream, from 1; a *position* is the index, or the id, of the last event that was read, so 0 is the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redis_plus.errors import EventsLost

Id = tuple[int, int]

#: The position before the first event.
BEGINNING: Id = (0, 0)


@dataclass(frozen=True, slots=True)
class Offsets:
    """What a queue's stream has at one moment.

    Attributes:
        queue: its name, for messages.
        epochs: (epoch, last N) of each epoch, oldest first; the last one goes on growing.
        first: id of the oldest event that is still there; None for an empty stream.
        is_over: whether the last epoch does not grow any more: another run of the server has written it, such as a primary that
            failed, and the next event begins a new one.
    """

    queue: str
    epochs: tuple[Id, ...]
    first: Id | None
    is_over: bool = False

    @property
    def total(self) -> int:
        """How many events were ever written: the index of the newest."""
        return sum(last for _, last in self.epochs)

    @property
    def trimmed(self) -> int:
        """How many of the oldest events are gone: the position at which reading can begin."""
        return self.total if self.first is None else self.index(self.first) - 1

    def index(self, position: Id) -> int:
        """Return the index of the event `position`.

        A number that an epoch that is over does not have was read from a primary that failed before it had replicated it; the
        position is then the end of that epoch.

        Raises:
            EventsLost: the stream has never had this event: it was deleted and begun anew, or went back to an old state.
        """
        if position == BEGINNING:
            return 0
        epoch, n = position
        before = 0
        for other, last in self.epochs:
            if other == epoch and (n <= last or self.is_over or (other, last) != self.epochs[-1]):
                return before + min(n, last)
            before += last
        newest = "-".join(map(str, self.epochs[-1])) if self.epochs else "empty"
        raise EventsLost(
            f"queue {self.queue!r}: the events were read up to {epoch}-{n}, and the stream is now at {newest}: it was deleted "
            "and begun anew, or restored from an old copy. Give the reader a new checkpoint, or set failOnDataLoss=false to read "
            "what is there"
        )

    def position_of(self, position: Id) -> int:
        """Return the index of `position`; where the stream never had it, the position at which reading can go on.

        Of the epoch that is there, all that it has was read. Of another one nothing is known: then it is the beginning.
        """
        try:
            return self.index(position)
        except EventsLost:
            return self.total if self.epochs and self.epochs[-1][0] == position[0] else self.trimmed

    def id(self, index: int) -> Id:
        """Return the id of the event `index`; of 0, the beginning."""
        before = 0
        for epoch, last in self.epochs:
            if before < index <= before + last:
                return (epoch, index - before)
            before += last
        return BEGINNING

    def ranges(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (epoch, first N, last N) of the events after index `start` up to `end`; several where epochs meet."""
        found, before = [], 0
        for epoch, last in self.epochs:
            low, high = max(start - before, 0) + 1, min(end - before, last)
            if low <= high:
                found.append((epoch, low, high))
            before += last
        return found


def loss_message(numbering: Offsets, start: int, end: int) -> str:
    """Return the sentence for events after index `start` up to `end` that were trimmed before they were read."""
    first, last = ("-".join(map(str, numbering.id(index))) for index in (start + 1, end))
    return (
        f"queue {numbering.queue!r}: {end - start} events, {first} to {last}, were trimmed before they were read. Read sooner, "
        "raise event_log_maxlen or event_log_max_age, or give the reader a readerName; failOnDataLoss=false goes on without them"
    )
