"""Consumers in processes, for the model test: they do to a real server what real ones do, on a clock of the test.

A process has a clock of its own, which runs evenly; the server's may be stepped. What a consumer is told it acts upon at once, as
`consumer.restricted_queues`, `maintenance.heartbeat`, `maintenance.consumer_lists` and `maintenance.process_recovery` do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.claims import ClaimCommands, State
from celery_redis_plus.broker.consumers.processes import FIRST_PAGE, Processes, ProcessRecord
from celery_redis_plus.broker.consumers.registry import Consumer, Consumers
from celery_redis_plus.errors import AccessRefused
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.stored_message import Claimed

#: `consumer_heartbeat_timeout`, `connection_lost_grace`, and the time between two heartbeats of a process.
LIFE_MS, LOST_MS, BEAT_MS = 4_000, 2_000, 1_000
#: What living processes have after a pause in which none was heard (`lua/include/living.lua`).
RESUMING_MS = 5_000
VISIBILITY_MS = 60_000
LEASE_MS = 5_000
LEASE_OF_LEADER_S = 3.0
POLLING_MS = 10_000
#: As `maintenance.consumer_lists` and `consumer.restricted_queues` have them.
DEATH_MARGIN_MS, LOOK_AGAIN_MS, REFUSED_AGAIN_MS = 20, 200, 5_000


@dataclass(eq=False)
class Member:
    """One consumer."""

    process: Process
    consumer: Consumer
    prefetch: int
    wakeup: bytes
    #: Has reason to claim.
    hot: bool = True
    managed: bool = False
    activations: bytes = b""
    #: It was told last that it may take.
    believes: bool = False
    #: When to claim by itself; None: it is woken.
    later_at: int | None = None
    #: Since when it waits for its wakeup.
    waits_since: int = 0
    #: It had credit and nothing to take when all had come to rest.
    rested: bool = False
    cancelled: bool = False
    #: It was not on the list at the last look.
    missed: bool = False
    held: list[Claimed] = field(default_factory=list)

    @property
    def credit(self) -> int:
        return 0 if self.cancelled else self.prefetch - len(self.held)

    @property
    def works(self) -> bool:
        return self.process.runs and not self.cancelled

    def __repr__(self) -> str:
        return f"{self.consumer.id} of {self.consumer.queue}"


class Process:
    """A worker's process: one session, its maintenance tasks, its consumers."""

    numbers = itertools.count(1)

    def __init__(self, commands: CommandConnection, keys: Keys, client: redis.Redis, now: int) -> None:
        self.session = f"s{next(self.numbers)}"
        self.commands, self.keys, self.client = commands, keys, client
        self.registry = Consumers(commands, keys, process=self.session, timeout_s=LIFE_MS / 1000)
        self.processes = Processes(commands, keys, delivery_limit=None, dead_letter_max=1000)
        self.claim_commands = ClaimCommands(commands, keys, holder=self.session, visibility_timeout_s=VISIBILITY_MS / 1000)
        self.members: list[Member] = []
        self.died_at: int | None = None
        self.frozen_at: int | None = None
        self.beat_at = self.check_at = self.lease_at = now
        self.leads = self.recovered = False
        self._stored = ""
        self._ids = itertools.count(1)

    @property
    def runs(self) -> bool:
        return self.died_at is None and self.frozen_at is None

    def present(self) -> list[Member]:
        return [member for member in self.members if not member.cancelled]

    def join(self, queue: str, declared: QueueArguments, *, priority: int, exclusive: bool, prefetch: int) -> Member:
        """Raises AccessRefused."""
        consumer = Consumer(f"{self.session}.{next(self._ids)}", queue, "tag", priority=priority, exclusive=exclusive)
        managed = self.registry.join(consumer)
        own = consumer.id if declared.single_active else str(priority or "")
        member = Member(self, consumer, prefetch, self.keys.queue(queue).wakeup_of(own), managed=managed)
        self.members.append(member)
        self.beat_at = self.check_at = 0
        return member

    def beat(self, now: int) -> None:
        """`Heartbeat.run`."""
        self.beat_at = now + BEAT_MS
        queues = tuple(sorted({member.consumer.queue for member in self.members}))
        record = ProcessRecord("run", (), LOST_MS / 1000, (self.session,), queues, "host", 1).encode()
        state = self._beat(record if record != self._stored else "")
        if state == "unknown":
            self.check_at = 0
            state = self._beat(record)
        self._stored, self.leads = record, state == "leader"

    def _beat(self, record: str) -> str:
        told = self.processes.beat(
            self.session, record, may_lead=True, asks=True, lease_s=LEASE_OF_LEADER_S, version="", next_s=BEAT_MS / 1000
        )
        return told.state

    def recover(self, lost: Process) -> None:
        """`ProcessRecovery.run`, of a process whose connections have ended."""
        lost.recovered = True
        for queue in {member.consumer.queue for member in lost.members}:
            page = FIRST_PAGE
            while page := self.processes.recover(queue, [lost.session], page).next_page:
                pass
            self.processes.remove_consumers(queue, [lost.session])
        self.processes.replace(lost.session, lost._stored, "")

    def check(self, now: int) -> None:
        """`ConsumerLists.run`."""
        self.check_at = now + LIFE_MS // 3
        by_consumer = {member.consumer: member for member in self.present()}
        for standing in self.registry.check_listed(list(by_consumer)):
            member = by_consumer[standing.consumer]
            if standing.next_death_s is not None:
                self.check_at = min(self.check_at, now + int(standing.next_death_s * 1000) + DEATH_MARGIN_MS)
            if standing.listed:
                member.missed = False
            elif not member.missed:
                member.missed, self.check_at = True, now + LOOK_AGAIN_MS
            else:
                member.missed = False
                self._join_again(member, now)

    def _join_again(self, member: Member, now: int) -> None:
        try:
            member.managed = self.registry.join(member.consumer)
            member.hot = True
        except AccessRefused:
            member.later_at = now + REFUSED_AGAIN_MS

    def keep_leases(self, now: int) -> None:
        """`LeaseHeartbeats.run`."""
        self.lease_at = now + LEASE_MS
        for member in self.members:
            if member.held:
                keys = self.keys.queue(member.consumer.queue)
                pairs = [text for claimed in member.held for text in (claimed.tag, claimed.claim)]
                places = [keys.index, keys.message, keys.meta]
                self.commands.call(script("extend_leases"), places, VISIBILITY_MS, len(member.held), *pairs)

    def claim(self, member: Member, now: int) -> list[Claimed]:
        """`RestrictedQueues.claim`, of one queue; the messages are delivered at once."""
        member.hot, member.later_at = False, None
        member.waits_since = now
        queue, taken = member.consumer.queue, []
        if not member.managed:
            batch = self.claim_commands.claim([queue], member.credit, share=True, held=[len(member.held)])
            taken, member.hot = batch.messages, bool(batch.more or batch.restricted)
            member.managed = bool(batch.restricted)
        else:
            reply = self.claim_commands.claim_restricted(
                queue, member.credit, member.consumer.id, credit=member.credit, activations=member.activations
            )
            taken, member.activations, member.hot = reply.messages, reply.activations, reply.more
            member.believes = reply.state is State.OK
            if reply.state is State.PLAIN:
                member.managed = False
            elif reply.state is State.UNKNOWN:
                member.hot = False
                self._join_again(member, now)
            if reply.wait_s is not None and not reply.more:
                member.later_at = now + int(reply.wait_s * 1000)
        member.held += taken
        return taken
