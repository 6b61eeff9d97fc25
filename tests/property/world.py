"""The model, and what every rule may ask of it."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import Keys
from celery_redis_plus.options import Options
from tests.support.clock import ServerClock
from tests.support.invariants import LEVEL, violations

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.scripts import Script
    from celery_redis_plus.stored_message import Outgoing

#: 2026-01-01; far from the real clock, so that a script that reads the real one is found out.
START_MS = 1_767_225_600_000
VISIBILITY_MS = 30_000
# As `maintenance tasks.sweeper` has them.
INTERVAL_MS, LEASE_MS, LONGEST_GAP_MS, GRACE_MS = 4_000, 6_000, 12_000, 10_000
#: Names that share a prefix, need escaping, or look like a hash tag.
LASTING = ("a", "a:b", "}%{x}")
TRANSIENT = "t*"
QUEUES = (*LASTING, TRANSIENT)
HOLDERS = ("h1", "h2")
SWEEPERS = ("s1", "s2")
DEAD_MAX = 3
#: Failed deliveries at which a message dies.
DELIVERY_LIMIT = 3
#: Longer than any run: what dies stays dead.
DEAD_TTL_MS = 10**12
LARGE = 2_000

queues = st.sampled_from(QUEUES)
holders = st.sampled_from(HOLDERS)


@dataclass(eq=False)
class Logical:
    """One publish of an application, however often it is tried."""

    number: int
    queue: str
    outgoing: Outgoing
    attempt: PublishAttempt = field(default_factory=PublishAttempt)
    #: The server has stored it.
    tag: str | None = None
    #: Its publisher got an answer.
    confirmed: bool = False

    def __repr__(self) -> str:
        return f"message {self.number} to {self.queue!r}"


@dataclass(eq=False)
class Message:
    """A message that the server has."""

    tag: str
    queue: str
    body: bytes
    score: int
    eta: int
    place: str
    claim: int = 0
    by: str | None = None
    #: Somebody knows of the claim: its reply was not lost.
    known: bool = False
    deadline: int = 0
    failed: int = 0
    requeues: int = 0
    #: The last claim whose work began.
    begun: int = 0
    seen: bool = False
    #: Milliseconds that it waits, where it waits for a time of its own and not for a moment.
    delay: int | None = None
    #: Milliseconds that it lives once it is ready.
    lives: int | None = None
    #: When it expires; None before it is ready for the first time.
    expires: int | None = None

    @property
    def order(self) -> tuple[int, str]:
        return self.score, self.tag


class LossyConnection(CommandConnection):
    """A connection whose next script call can be told to meet an accident."""

    accident: str | None = None

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, "model", timeout=5)
        #: What was written and has not reached the server: producer -> calls, in the order of the connection.
        self.under_way: dict[bytes, deque[tuple[Script, bytes]]] = {}
        #: The reply that nobody read.
        self.lost_reply: Any = None

    def call_packed(self, script: Script, packed: bytes) -> Any:
        accident, self.accident = self.accident, None
        if accident is None:
            return super().call_packed(script, packed)
        if accident == "refused":
            self.outcome_unknown = False
            raise ServerUnreachable("refused")
        if accident == "delayed":
            self.under_way.setdefault(self.producer, deque()).append((script, packed))
        elif accident == "lost reply":
            self.lost_reply = super().call_packed(script, packed)
        # "never arrives": written to a connection that was dead already.
        self.outcome_unknown = True
        raise ServerUnreachable(accident)


class World(RuleBasedStateMachine):
    """The server and the model of it. `client` and `address` are set by the test."""

    client: redis.Redis
    address: Address

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.clock = ServerClock(self.client, START_MS)
        self.keys = Keys("p[*]")
        self.commands = LossyConnection(Connector(self.address, Options()))
        self.unacked_messages = UnackedMessages()
        self.acknowledger = Acknowledger(
            self.commands, self.keys, self.unacked_messages, dead_letter_max=DEAD_MAX, delivery_limit=DELIVERY_LIMIT
        )
        self.queues = Queues(
            self.commands,
            self.keys,
            transient_ttl_s=3600,
            event_log=EventLogSettings(wanted=True, maxlen=10**9, hard_maxlen=10**9),
        )
        self.publisher = Publisher(self.commands, self.keys, dedup_window_s=900, on_missing=self.queues.revive)
        self.claimers = {
            name: ClaimCommands(self.commands, self.keys, holder=name, visibility_timeout_s=VISIBILITY_MS / 1000)
            for name in HOLDERS
        }
        self.numbers = itertools.count(1)
        self.logical: list[Logical] = []
        self.by_body: dict[bytes, Logical] = {}
        self.messages: dict[str, Message] = {}
        #: (tag, claim number, queue) of claims that are over.
        self.stale: list[tuple[str, int, str]] = []
        #: Queues whose wakeup a client has taken and not used.
        self.swallowed: set[str] = set()
        self.swept_at: dict[str, int] = {}
        self.grace_until: dict[str, int] = {}
        #: The latest time, in ms, that a message of the queue was published by.
        self.newest: dict[str, int] = {}
        #: Tags that a delete has put into the trash.
        self.trashed: set[str] = set()

    @initialize()
    def declare(self) -> None:
        for queue in LASTING:
            self.queues.declare(queue, QueueArguments.parse(queue, durable=True))
        self.queues.declare(TRANSIENT, QueueArguments.parse(TRANSIENT, auto_delete=True))

    # -- the model's eyes -------------------------------------------------------------------------------------------------

    def live(self, queue: str, place: str) -> list[Message]:
        return [m for m in self.messages.values() if m.queue == queue and m.place == place]

    def ready(self, queue: str) -> list[Message]:
        return sorted(self.live(queue, "ready"), key=lambda m: m.order)

    def claimed_by(self, holder: str | None = None) -> list[Message]:
        return [m for m in self.messages.values() if m.place == "claimed" and m.known and holder in (None, m.by)]

    def notifies(self, queue: str) -> None:
        self.swallowed.discard(queue)

    def end_claim(self, message: Message) -> None:
        self.stale.append((message.tag, message.claim, message.queue))
        message.by, message.known = None, False

    def back(self, message: Message, *, failed: bool = False, seen: bool = False, pause_ms: int = 0) -> None:
        message.failed += failed
        if failed and message.failed >= DELIVERY_LIMIT:
            self.die(message)
            return
        self.end_claim(message)
        message.seen = message.seen or seen
        if pause_ms:
            message.place, message.eta, message.delay = "delayed", self.clock.now_ms + pause_ms, pause_ms
            # As one of its priority that is published then.
            message.score = message.score // LEVEL * LEVEL + message.eta
        else:
            message.place = "ready"
            self.notifies(message.queue)

    def remove(self, message: Message) -> None:
        if message.place == "claimed":
            self.end_claim(message)
        del self.messages[message.tag]

    def held(self, tag: str, claim: int, queue: str) -> UnackedMessage:
        return UnackedMessage(tag, queue, claim, "session")

    def die(self, message: Message) -> None:
        self.end_claim(message)
        if message.queue == TRANSIENT:
            del self.messages[message.tag]
            return
        message.place = "dead"
        # Dead letters of one millisecond are in the order of their tags.
        message.deadline = self.clock.now_ms

    def expired(self, queue: str) -> list[Message]:
        """Return the ready messages that must not be delivered any more."""
        return [m for m in self.live(queue, "ready") if m.expires is not None and m.expires <= self.clock.now_ms]

    def gone_from(self, place: bytes, messages: list[Message]) -> list[Message]:
        """Return those of `messages` that the server's set no longer has."""
        return [m for m in messages if self.client.zscore(place, m.tag) is None]

    def evict(self, queue: str) -> None:
        dead = sorted(self.live(queue, "dead"), key=lambda m: (m.deadline, m.tag))
        for message in dead[: max(0, len(dead) - DEAD_MAX)]:
            del self.messages[message.tag]

    def evict_gone(self, queue: str, *, all_of_them: bool) -> None:
        """Forget the oldest dead letters that a sweep has removed: those over the bound, or some of them."""
        dead = sorted(self.live(queue, "dead"), key=lambda m: (m.deadline, m.tag))
        gone = self.gone_from(self.keys.queue(queue).dead, dead)
        over = dead[: max(0, len(dead) - DEAD_MAX)]
        assert gone == over[: len(gone)]
        assert gone == over or not all_of_them
        for message in gone:
            del self.messages[message.tag]

    # -- what has to hold after each step ---------------------------------------------------------------------------------

    @invariant()
    def nothing_is_violated(self) -> None:
        assert violations(self.client, self.keys) == []

    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        with self.client.pipeline(transaction=False) as pipeline:
            for queue in QUEUES:
                keys = self.keys.queue(queue)
                pipeline.zrange(keys.ready, 0, -1, withscores=True)
                pipeline.zrange(keys.delayed, 0, -1, withscores=True)
                pipeline.zrange(keys.index, 0, -1, withscores=True)
                pipeline.zrange(keys.dead, 0, -1)
                pipeline.zrange(keys.dlx_outbox, 0, -1)
                pipeline.exists(keys.wakeup)
            replies = iter(pipeline.execute())
        for queue in QUEUES:
            ready, delayed, index, dead, dying, wakeup = itertools.islice(replies, 6)
            assert [(tag.decode(), int(score)) for tag, score in ready] == [(m.tag, m.score) for m in self.ready(queue)]
            assert {tag.decode(): int(eta) for tag, eta in delayed} == {m.tag: m.eta for m in self.live(queue, "delayed")}
            assert {tag.decode(): int(end) for tag, end in index} == {m.tag: m.deadline for m in self.live(queue, "claimed")}
            assert {tag.decode() for tag in dead} == {m.tag for m in self.live(queue, "dead")}
            assert {tag.decode() for tag in dying} == {m.tag for m in self.live(queue, "dlx_outbox")}
            assert not ready or wakeup or queue in self.swallowed, f"{queue!r} has ready messages and no wakeup"
