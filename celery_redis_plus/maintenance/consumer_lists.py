"""Sees that this process's consumers are on the lists of their queues, and takes those off that are gone.

A consumer lives as long as its process: no heartbeat of its own says so. But the list is gone of a queue that was deleted and is
declared again, or whose database was flushed. The same call tells how the queues are, which nobody has to ask for besides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.arguments.eta import time_of_ms
from celery_redis_plus.broker.consumers.registry import CONSUMER_ID_SEPARATOR
from celery_redis_plus.errors import AccessRefused, ResourceLocked
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice
from celery_redis_plus.maintenance.transient_queues import Life

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.registry import Consumer, ConsumerLook, Consumers, Standing
    from celery_redis_plus.broker.consumers.unacked import UnackedMessages
    from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
    from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues

logger = logging.getLogger(__name__)

#: Consumers in one script call.
CONSUMERS_A_CALL = 50
#: Share of the interval by which a look may come early, to be one with others.
TOGETHER = 0.25
#: Seconds until a consumer that is missing in its queue's list is checked once more.
UNLISTED_RECHECK_S = 0.2
#: Seconds after which a consumer's end is looked for beyond the moment at which it is due.
DEATH_MARGIN_S = 0.02
#: Seconds between two looks whether a paused queue goes on.
PAUSE_CHECK_S = 5.0


class ConsumerLists(MaintenanceTask):
    """The maintenance task that keeps the lists of consumers true."""

    def __init__(
        self,
        consumers: Consumers,
        consumed: ConsumedQueues,
        unacked_messages: UnackedMessages,
        topology: DeclaredTopology,
        *,
        timeout_s: float,
        note_id: Callable[[str, bytes], None] = lambda *_: None,
    ) -> None:
        """Look after the consumers in `consumed`.

        Args:
            consumers: the lists on the server.
            consumed: the queues that this process consumes; it is told how each of them is.
            unacked_messages: tells which messages of a broken session are still to be released.
            topology: tells which queues have a single active consumer.
            timeout_s: `consumer_heartbeat_timeout`; each list is looked at every third of it.
            note_id: is told a queue, and the id of its record; an empty one: it has none.
        """
        self._consumers = consumers
        self._consumed = consumed
        self._unacked_messages = unacked_messages
        self._topology = topology
        #: One that went with a heartbeat.
        self._look: ConsumerLook | None = None
        self._timeout_s, self._interval_s = timeout_s, timeout_s / 3
        self._note_id = note_id
        #: Consumer -> when it is looked for next, on `clock`, in seconds. One that is not here is new.
        self._looks_at: dict[str, float] = {}
        #: Consumers that were not on their lists when we last looked.
        self._missed: set[str] = set()
        #: Paused queues, with the reasons that were logged.
        self._paused: dict[str, str] = {}
        #: (queue, consumer) of connections that broke: no other process takes them off the lists.
        self._left_behind: deque[tuple[str, str]] = deque()
        #: Those of them that wait for the application's decision about deliveries -> until when, on `clock`, in seconds.
        self._waits_until: dict[tuple[str, str], float] = {}

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds."""
        if self._look is not None and self._look.answered:
            return 0.0
        return 0.0 if any(self._may_leave(*left) for left in list(self._left_behind)) else self._due_at

    def run_soon(self) -> None:
        """Look for all consumers at once: the connection was away, or this process counted no more."""
        self._looks_at = dict.fromkeys(self._looks_at, 0.0)
        self._due_at = 0.0

    def look_soon(self) -> None:
        """Look for new consumers at once: what is consumed has changed."""
        self._due_at = 0.0

    def deregister(self, queue: str, consumer: str) -> None:
        """Take a consumer off its queue's list soon: its own connection cannot. From any thread.

        A single active consumer leaves when the messages of its session are back: the next one would begin with newer ones.
        """
        self._left_behind.append((queue, consumer))

    def go_with_heartbeat(self, next_at: float) -> None:
        """Look, with the next call, for those that are due soon, and before the next heartbeat.

        `next_at` is when that comes, on `clock`, in seconds.
        """
        present = {consumer.id: consumer for consumer in self._present()}
        latest = min(next_at, clock.now_s() + self._interval_s * TOGETHER)
        # One that was missing is checked once more after a while, and not before.
        due = [
            present[consumer]
            for consumer, at in self._looks_at.items()
            if at <= latest and consumer in present and consumer not in self._missed
        ]
        if self._look is None and 0 < len(due) <= CONSUMERS_A_CALL and clock.now_s() < self._due_at:
            self._look = self._consumers.check_listed_nowait(due, self._life_ms)
            self._set_due(due, clock.now_s() + self._interval_s)

    def _set_due(self, consumers: Iterable[Consumer], at: float) -> None:
        self._looks_at.update((consumer.id, at) for consumer in consumers if consumer.id in self._looks_at)
        self._due_at = min(self._looks_at.values(), default=at)

    def run(self) -> None:
        """Look for those that are due. Raises as `CommandConnection.call` does; nothing is forgotten then."""
        for left in [left for left in list(self._left_behind) if self._may_leave(*left)]:
            self._consumers.leave(*left)
            self._left_behind.remove(left)
            self._waits_until.pop(left, None)
        present = {consumer.id: consumer for consumer in self._present()}
        if present.keys() != self._looks_at.keys():
            self._note_members(present)
        self._take_answer(present)
        now, slice_ = clock.now_s(), Slice()
        # Consumers that joined one after the other are looked for in one call.
        together = now + self._interval_s * TOGETHER if any(at <= now for at in self._looks_at.values()) else now
        due = [
            present[consumer] for consumer, at in self._looks_at.items() if at <= (now if consumer in self._missed else together)
        ]
        for at in range(0, len(due), CONSUMERS_A_CALL):
            if slice_.over:
                # The rest stays due.
                break
            self._check(due[at : at + CONSUMERS_A_CALL])
        self._due_at = min(self._looks_at.values(), default=clock.now_s() + self._interval_s)

    def _take_answer(self, present: Mapping[str, Consumer]) -> None:
        """Read what a look has told that went with a heartbeat; where none came, its consumers are due."""
        look = self._look
        if look is None or not look.answered:
            return
        self._look = None
        if look.reply is None:
            self._set_due(look.consumers, 0.0)
        else:
            self._note([standing for standing in self._consumers.standings(look) if standing.consumer.id in present])

    def _note_members(self, present: dict[str, Consumer]) -> None:
        """Note which consumers there are: new ones are due."""
        self._looks_at = {consumer: self._looks_at.get(consumer, 0.0) for consumer in present}
        self._missed.intersection_update(present)

    def _may_leave(self, queue: str, consumer: str) -> bool:
        record = self._topology.records.get(queue)
        if record is not None and not record.arguments.single_active:
            return True
        session = consumer.partition(CONSUMER_ID_SEPARATOR)[0]
        if self._unacked_messages.goes_back(session, queue):
            return False
        if not self._unacked_messages.is_undecided(session, queue):
            return True
        # No longer than this: one that counts as dead loses what the application works on, too.
        now = clock.now_s()
        return now >= self._waits_until.setdefault((queue, consumer), now + self._interval_s)

    def _check(self, consumers: list[Consumer]) -> None:
        self._note(self._consumers.check_listed(consumers, self._life_ms))

    def _note(self, standings: Iterable[Standing]) -> None:
        now = clock.now_s()
        for standing in standings:
            self._looks_at[standing.consumer.id] = now + self._interval_s
            if not standing.listed:
                self._join_again(standing.consumer)
            if standing.next_death_s is not None:
                # What the dead one had alone passes on in time.
                self._look_again(standing.consumer, now + standing.next_death_s + DEATH_MARGIN_S)
            self._note_pause(standing)
            if standing.queue is not None:
                self._consumed.note_seen(standing.consumer.queue, standing.queue)
                self._note_id(standing.consumer.queue, standing.queue.record_id)

    def _life_ms(self, queue: str) -> int:
        """Return for how long the record of a queue is to live from now on, in ms; 0 for a lasting one."""
        consumed = self._consumed.get(queue)
        return 0 if consumed is None or consumed.ttl_ms is None else int(Life.of(consumed, self._timeout_s).seconds * 1000)

    def _look_again(self, consumer: Consumer, at: float) -> None:
        """Look for a consumer at `at`, on `clock`, if it is not due before."""
        self._looks_at[consumer.id] = min(self._looks_at[consumer.id], at)

    def _join_again(self, consumer: Consumer) -> None:
        if consumer.id not in self._missed:
            # Its list is gone; or it was cancelled at this very moment, and then it must not be listed again.
            self._missed.add(consumer.id)
            self._look_again(consumer, clock.now_s() + UNLISTED_RECHECK_S)
            return
        self._missed.discard(consumer.id)
        try:
            self._consumers.join(consumer)
        except (AccessRefused, ResourceLocked) as error:
            logger.warning("consumer %s was taken for dead meanwhile: %s", consumer.tag, error, extra={"queue": consumer.queue})
            return
        if consumer not in self._present():
            self._consumers.leave(consumer.queue, consumer.id)

    def _note_pause(self, standing: Standing) -> None:
        queue = standing.consumer.queue
        if standing.paused != self._paused.get(queue):
            if standing.paused is None:
                del self._paused[queue]
                logger.info("queue %r is resumed", queue, extra={"queue": queue})
            else:
                self._paused[queue] = standing.paused
                end = time_of_ms(standing.paused_until * 1000).isoformat() if standing.paused_until else "it is resumed"
                logger.warning("queue %r is paused until %s: %s", queue, end, standing.paused, extra={"queue": queue})
        if standing.paused is not None:
            self._look_again(standing.consumer, clock.now_s() + PAUSE_CHECK_S)

    def _present(self) -> list[Consumer]:
        return [consumer for queue in self._consumed.all() for consumer in queue.consumers]
