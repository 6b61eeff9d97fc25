"""Carries on what a broken connection left: settlements that got lost, messages whose fate is open, claims without a reply."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.queue_failures import QueueFailures
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.acks import Acknowledger
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.broker.consumers.settlement import Settlement
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Seconds between two checks of messages whose outcome is unknown.
ORPHAN_CHECK_S = 0.5
#: Seconds until a queue that refuses a settlement, for what its keys hold, is tried again.
REFUSED_AGAIN_S = 5.0
#: Seconds until a broken session is checked once more: its last claim may have been under way to the server.
SESSION_RECHECK_S = 5.0
#: Entries of the index that one script call reads.
INDEX_PAGE = 500
#: Where `hand_back_session` begins; it returns where it goes on.
FIRST_PAGE = b""


class ReconnectRecovery(MaintenanceTask):
    """The maintenance task that settles for sessions that are gone."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, unacked_messages: UnackedMessages, acknowledger: Acknowledger
    ) -> None:
        """Work over `commands` on what stands in `unacked_messages`."""
        self._commands = commands
        self._keys = keys
        self._unacked_messages = unacked_messages
        self._acknowledger = acknowledger
        self._check_at = 0.0
        self._rechecks: list[tuple[float, str, frozenset[str]]] = []
        #: (session, queue, page, messages returned): messages of broken sessions that are being released.
        self._returning: deque[tuple[str, str, bytes, int]] = deque()
        #: Broken sessions that are looked at for the first time, with their queues.
        self._under_way: dict[str, frozenset[str]] = {}
        #: Settlements that their queues refuse: when they are tried again, on `clock`, in seconds, and the messages.
        self._refused: list[tuple[float, Settlement, list[UnackedMessage]]] = []
        self._failures = QueueFailures(commands, logger, "refuses settlements")
        #: Decides for Celery; without one every unsettled message goes back, as AMQP does.
        self.active_tasks: ActiveTasks | None = None

    @property
    def next_run_at(self) -> float:
        """When to run next, on `clock`, in seconds; infinity when nothing is open."""
        if self._unacked_messages.waiting or self._returning:
            return 0.0
        due = [at for at, _, _ in (*self._rechecks, *self._refused)]
        if self._unacked_messages.orphaned():
            due.append(self._check_at)
        return min(due, default=float("inf"))

    def run(self) -> None:
        """Do what is open. Raises as `CommandConnection.call` does; nothing is forgotten then."""
        now = clock.now_s()
        for refused in [refused for refused in self._refused if refused[0] <= now]:
            self._refused.remove(refused)
            for unacked in refused[2]:
                self._unacked_messages.defer(unacked, refused[1])
        self._carry_out()
        fresh = self._fresh()
        if fresh or now >= self._check_at:
            # At once for a session that has just broken: its consumers leave when its messages are back.
            self._check_at = now + ORPHAN_CHECK_S
            self._decide()
            self._carry_out()
        for session, queues in fresh.items():
            self._under_way[session] = self._under_way.get(session, frozenset()) | queues
            self._returning.extend((session, queue, FIRST_PAGE, 0) for queue in queues)
        for recheck in [recheck for recheck in self._rechecks if recheck[0] <= now]:
            self._returning.extend((recheck[1], queue, FIRST_PAGE, 0) for queue in recheck[2])
            self._rechecks.remove(recheck)
        slice_ = Slice()
        while self._returning and not slice_.over:
            try:
                self._hand_back_page(*self._returning[0])
            except ResponseError as error:
                session, queue, _, _ = self._returning[0]
                self._failures.contain(error, queue)
                self._returning.popleft()
                self._rechecks.append((clock.now_s() + REFUSED_AGAIN_S, session, frozenset((queue,))))
        busy = {returning[0] for returning in self._returning}
        for session in [session for session in self._under_way if session not in busy]:
            queues = self._under_way.pop(session)
            self._unacked_messages.recovered(session, queues)
            self._rechecks.append((clock.now_s() + SESSION_RECHECK_S, session, queues))

    def _fresh(self) -> dict[str, frozenset[str]]:
        """Return the broken sessions that are not looked at yet, with their queues."""
        broken = self._unacked_messages.broken_sessions()
        new = {session: queues - self._under_way.get(session, frozenset()) for session, queues in broken.items()}
        return {session: queues for session, queues in new.items() if queues or session not in self._under_way}

    def _carry_out(self) -> None:
        batches: dict[tuple[Settlement, str], list[UnackedMessage]] = {}
        for unacked in self._unacked_messages.take_deferred():
            if unacked.settlement is not None:
                batches.setdefault((unacked.settlement, unacked.queue), []).append(unacked)
        try:
            for (settlement, queue), messages in list(batches.items()):
                try:
                    self._acknowledger.settle(messages, settlement)
                except ResponseError as error:
                    self._failures.contain(error, queue)
                    self._refused.append((clock.now_s() + REFUSED_AGAIN_S, settlement, messages))
                del batches[settlement, queue]
        finally:
            self._unacked_messages.finish_deferred(unacked for messages in batches.values() for unacked in messages)

    def _decide(self) -> None:
        for unacked in self._unacked_messages.orphaned():
            message = unacked.alive
            if message is None or self.active_tasks is None:
                keeps: bool | None = False
            else:
                keeps = self.active_tasks.is_active(message, unacked.orphaned_at)
            unacked.kept = False
            if keeps:
                self._unacked_messages.keep(unacked)
            elif keeps is False:
                logger.debug("message %s of queue %r goes back: no task works on it any more", unacked.tag, unacked.queue)
                self._unacked_messages.release(unacked)

    def _hand_back_page(self, session: str, queue: str, page: bytes, total: int) -> None:
        of = self._keys.queue(queue)
        returned, page = self._commands.call(
            script("release_session"),
            [of.ready, of.index, of.message, of.wakeup, of.expiry, of.schedule_wakeup, of.meta, of.delayed],
            session,
            page,
            INDEX_PAGE,
            *self._unacked_messages.tags(queue),
        )
        total += returned
        if page:
            self._returning[0] = (session, queue, page, total)
            return
        self._returning.popleft()
        if total:
            logger.info("%d message(s) of queue %r went back: their claim's reply was lost", total, queue, extra={"queue": queue})
