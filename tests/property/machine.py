"""A plain-Python model of the broker, and rules that do the same to the model and to a real server.

Every rule is one command, or one that a dying process left half done; between any two of them anything may come. The model
knows what must happen; `check` compares it with what the server holds.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_redis_plus.broker.claiming import Claimer
from celery_redis_plus.broker.holding import Held, Register, Settlement
from celery_redis_plus.broker.publishing import Attempt, Publisher
from celery_redis_plus.broker.queue_arguments import QueueArguments
from celery_redis_plus.broker.queues import Queues
from celery_redis_plus.broker.settling import Settler
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.keys import Keys
from celery_redis_plus.message import Outgoing
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import Script, script
from celery_redis_plus.topology.connector import Connector
from celery_redis_plus.topology.wire import Wire
from tests.support.clock import ServerClock
from tests.support.invariants import LEVEL, violations

if TYPE_CHECKING:
    from celery_redis_plus.topology.address import Address

#: 2026-01-01; far from the real clock, so that a script that reads the real one is found out.
START_MS = 1_767_225_600_000
VISIBILITY_MS = 30_000
# As `duties.sweeper` has them.
INTERVAL_MS, LEASE_MS, LONGEST_GAP_MS, GRACE_MS = 4_000, 6_000, 12_000, 10_000
#: Names that share a prefix, need escaping, or look like a hash tag.
LASTING = ("a", "a:b", "}%{x}")
TRANSIENT = "t*"
QUEUES = (*LASTING, TRANSIENT)
HOLDERS = ("h1", "h2")
SWEEPERS = ("s1", "s2")
DEAD_MAX = 3
LARGE = 2_000

queues = st.sampled_from(QUEUES)
holders = st.sampled_from(HOLDERS)


@dataclass(eq=False)
class Logical:
    """One publish of an application, however often it is tried."""

    number: int
    queue: str
    outgoing: Outgoing
    attempt: Attempt = field(default_factory=Attempt)
    #: The server has stored it.
    tag: str | None = None
    #: Its publisher got an answer.
    confirmed: bool = False


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
    seen: bool = False

    @property
    def order(self) -> tuple[int, str]:
        return self.score, self.tag


class LossyWire(Wire):
    """A connection whose next script call can be told to meet an accident."""

    accident: str | None = None

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, "model", timeout=5)
        #: What was written and has not reached the server: producer -> calls, in the order of the connection.
        self.under_way: dict[bytes, deque[tuple[Script, tuple[bytes, ...], tuple[Any, ...]]]] = {}
        #: The reply that nobody read.
        self.lost_reply: Any = None

    def run(self, script: Script, keys: Sequence[bytes], *arguments: Any) -> Any:
        accident, self.accident = self.accident, None
        if accident is None:
            return super().run(script, keys, *arguments)
        if accident == "refused":
            self.in_doubt = False
            raise ServerUnreachable("refused")
        if accident == "delayed":
            self.under_way.setdefault(self.producer, deque()).append((script, tuple(keys), arguments))
        elif accident == "lost reply":
            self.lost_reply = super().run(script, keys, *arguments)
        # "never arrives": written to a connection that was dead already.
        self.in_doubt = True
        raise ServerUnreachable(accident)


class Broker(RuleBasedStateMachine):
    """See the module's docstring. `client` and `address` are set by the test."""

    client: redis.Redis
    address: Address

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.clock = ServerClock(self.client, START_MS)
        self.keys = Keys("p[*]")
        self.wire = LossyWire(Connector(self.address, Options()))
        self.register = Register()
        self.settler = Settler(self.wire, self.keys, self.register, dead_letter_max=DEAD_MAX)
        self.queues = Queues(self.wire, self.keys, transient_ttl_s=3600)
        self.publisher = Publisher(self.wire, self.keys, dedup_window_s=900, on_missing=self.queues.revive)
        self.claimers = {
            name: Claimer(self.wire, self.keys, holder=name, visibility_timeout_s=VISIBILITY_MS / 1000) for name in HOLDERS
        }
        self.numbers = itertools.count(1)
        self.logical: list[Logical] = []
        self.by_body: dict[bytes, Logical] = {}
        self.messages: dict[str, Message] = {}
        #: (tag, claim number, queue) of claims that are over.
        self.stale: list[tuple[str, int, str]] = []
        #: Queues whose bell a client has taken and not answered.
        self.swallowed: set[str] = set()
        #: Tags that a delete has put into the trash.
        self.trashed: set[str] = set()

    @initialize()
    def declare(self) -> None:
        for queue in LASTING:
            self.queues.declare(queue, QueueArguments.parse(queue, durable=True))
        self.queues.declare(TRANSIENT, QueueArguments.parse(TRANSIENT, auto_delete=True))

    def teardown(self) -> None:
        try:
            self._everything_comes_through()
        finally:
            self.wire.close()

    # -- the model's eyes -------------------------------------------------------------------------------------------------

    def live(self, queue: str, place: str) -> list[Message]:
        return [m for m in self.messages.values() if m.queue == queue and m.place == place]

    def ready(self, queue: str) -> list[Message]:
        return sorted(self.live(queue, "ready"), key=lambda m: m.order)

    def claimed_by(self, holder: str | None = None) -> list[Message]:
        return [m for m in self.messages.values() if m.place == "claimed" and m.known and holder in (None, m.by)]

    def rings(self, queue: str) -> None:
        self.swallowed.discard(queue)

    def end_claim(self, message: Message) -> None:
        self.stale.append((message.tag, message.claim, message.queue))
        message.by, message.known = None, False

    def back(self, message: Message, *, failed: bool = False, seen: bool = False) -> None:
        self.end_claim(message)
        message.place = "ready"
        message.failed += failed
        message.seen = message.seen or seen
        self.rings(message.queue)

    def remove(self, message: Message) -> None:
        if message.place == "claimed":
            self.end_claim(message)
        del self.messages[message.tag]

    # -- publishing -------------------------------------------------------------------------------------------------------

    @rule(
        queue=queues,
        priority=st.sampled_from((0, 1, 254, 255)),
        delay=st.sampled_from((0, 0, 0, -5_000, 1, 2_500, 40_000)),
        relative=st.booleans(),
        large=st.integers(0, 9).map(lambda n: n == 0),
    )
    def publish(self, queue: str, priority: int, delay: int, relative: bool, large: bool) -> None:
        self.attempt(self.new(queue, priority, delay, relative=relative, large=large))

    @rule(
        accidents=st.lists(st.sampled_from(("delayed", "lost reply", "never arrives")), min_size=1, max_size=4),
        queue=queues,
        large=st.booleans(),
    )
    def publish_over_a_failing_connection(self, accidents: list[str], queue: str, large: bool) -> None:
        """Several messages in one connection's order, each in doubt; then the connection is gone."""
        arriving = True
        for accident in accidents:
            logical = self.new(queue, 0, 0, relative=False, large=large)
            # What comes after a hole in the stream of bytes does not arrive.
            arriving = arriving and accident != "never arrives"
            late = bool(self.wire.under_way.get(self.wire.producer))
            self.attempt(logical, accident=("delayed" if late else accident) if arriving else "never arrives")
        self.wire.abandon()

    @precondition(lambda self: self.unconfirmed())
    @rule(
        data=st.data(),
        accident=st.sampled_from((None, None, "refused", "delayed", "lost reply", "never arrives")),
    )
    def retry(self, data: st.DataObject, accident: str | None) -> None:
        self.attempt(data.draw(st.sampled_from(self.unconfirmed()), label="logical"), accident=accident)

    @precondition(lambda self: self.late())
    @rule(data=st.data())
    def a_late_original_arrives(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(self.late()), label="producer")
        what, keys, arguments = self.wire.under_way[producer].popleft()
        try:
            reply = self.wire.run(what, keys, *arguments)
        except redis.ResponseError as error:
            # Its body has been taken over by the retry, or has expired.
            assert "staged" in str(error)  # noqa: PT017 - the error is the answer that nobody reads
            return
        self.stored(self.by_body[self.body_of(keys, arguments, reply)], reply.decode()) if reply else None

    @precondition(lambda self: self.late())
    @rule(data=st.data())
    def a_late_original_is_lost_with_all_behind_it(self, data: st.DataObject) -> None:
        del self.wire.under_way[data.draw(st.sampled_from(self.late()), label="producer")]

    @rule(queue=queues)
    def publisher_dies_between_staging_and_script(self, queue: str) -> None:
        logical = self.new(queue, 0, 0, relative=False, large=True)
        self.attempt(logical, accident="refused")
        self.logical.remove(logical)

    def unconfirmed(self) -> list[Logical]:
        return [logical for logical in self.logical if not logical.confirmed]

    def late(self) -> list[bytes]:
        return [producer for producer, calls in self.wire.under_way.items() if calls]

    def new(self, queue: str, priority: int, delay: int, *, relative: bool, large: bool) -> Logical:
        number = next(self.numbers)
        body = b"%d." % number + b"x" * (LARGE if large else 0)
        eta: int | str = 0
        if delay:
            eta = f"+{delay}" if relative and delay > 0 else self.clock.now_ms + delay
        logical = Logical(number, queue, Outgoing(b"{}", body, 255 - priority, eta))
        self.logical.append(logical)
        self.by_body[body] = logical
        return logical

    def attempt(self, logical: Logical, *, accident: str | None = None) -> None:
        self.wire.connect()
        self.wire.accident = accident
        self.wire.lost_reply = None
        before = logical.tag
        try:
            stored = self.publisher.to_queue(logical.queue, logical.outgoing, logical.attempt)
        except ServerUnreachable:
            self.wire.accident = None
            reply = self.wire.lost_reply
            if reply:
                self.stored(logical, reply.decode())
            return
        assert stored
        logical.confirmed = True
        if before is None:
            tag = self.find(logical)
            assert tag is not None, "confirmed, and not stored"
            self.stored(logical, tag)

    def find(self, logical: Logical) -> str | None:
        """Return the tag of a message that was published just now."""
        keys = self.keys.queue(logical.queue)
        for key in self.client.scan_iter(self.pattern(keys.message), count=1000):
            tag = key.rpartition(b":")[2].decode()
            if not tag.startswith("staged.") and tag not in self.messages and self.stored_body(key) == logical.outgoing.body:
                return tag
        return None

    @staticmethod
    def pattern(prefix: bytes) -> bytes:
        return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^" else bytes([c]) for c in prefix) + b"*"

    def stored_body(self, key: bytes) -> bytes:
        payload, body = self.client.hmget(key, "payload", "body")
        return body if body is not None else payload.partition(b"\n")[2]

    def body_of(self, keys: Sequence[bytes], arguments: tuple[Any, ...], reply: bytes) -> bytes:
        if len(keys) == 7:
            return arguments[0].partition(b"\n")[2]
        return self.stored_body(keys[3] + reply)

    def stored(self, logical: Logical, tag: str) -> None:
        assert logical.tag is None, f"message {logical.number} was stored twice"
        logical.tag = tag
        outgoing, now = logical.outgoing, self.clock.now_ms
        eta = now + int(outgoing.eta) if isinstance(outgoing.eta, str) else outgoing.eta
        delayed = eta > now
        self.messages[tag] = Message(
            tag,
            logical.queue,
            outgoing.body,
            outgoing.rank * LEVEL + (eta if delayed else now),
            eta,
            "delayed" if delayed else "ready",
        )
        if not delayed:
            self.rings(logical.queue)

    # -- consuming --------------------------------------------------------------------------------------------------------

    @rule(
        holder=holders,
        wanted=st.lists(queues, min_size=1, max_size=len(QUEUES), unique=True),
        credit=st.integers(1, 6),
        share=st.booleans(),
    )
    def claim(self, holder: str, wanted: list[str], credit: int, share: bool) -> None:
        before = {queue: self.ready(queue) for queue in wanted}
        batch = self.claimers[holder].claim(wanted, credit, share=share)
        total = sum(map(len, before.values()))
        assert len(batch.messages) == min(credit, total)
        for queue in wanted:
            taken = [m for m in batch.messages if m.queue == queue]
            assert [m.tag for m in taken] == [m.tag for m in before[queue][: len(taken)]]
            assert (queue in batch.more) == (len(taken) < len(before[queue]))
            self.rings(queue)
        if not share:
            self.first_queues_first(before, [m.tag for m in batch.messages])
        elif credit >= len(wanted):
            assert {m.queue for m in batch.messages} == {queue for queue, messages in before.items() if messages}
        for claimed in batch.messages:
            model = self.messages[claimed.tag]
            assert model.eta <= self.clock.now_ms, "delivered before its eta"
            body = claimed.body if claimed.body is not None else self.claimers[holder].fetch_body(claimed)
            assert body == model.body
            self.taken(model, holder, known=True)
            assert (claimed.claim, claimed.failures) == (model.claim, model.failed)
            assert claimed.redelivered == (model.seen or model.failed > 0)

    def first_queues_first(self, before: dict[str, list[Message]], tags: list[str]) -> None:
        assert tags == [m.tag for messages in before.values() for m in messages][: len(tags)]

    def taken(self, message: Message, holder: str, *, known: bool) -> None:
        message.claim += 1
        message.place, message.by, message.known = "claimed", holder, known
        message.deadline = self.clock.now_ms + VISIBILITY_MS

    @rule(holder=holders, queue=queues, credit=st.integers(1, 4))
    def a_claims_reply_is_lost(self, holder: str, queue: str, credit: int) -> None:
        self.wire.connect()
        self.wire.accident = "lost reply"
        taken = self.ready(queue)[:credit]
        try:
            self.claimers[holder].claim([queue], credit, share=False)
        except ServerUnreachable:
            self.rings(queue)
        for message in taken:
            self.taken(message, holder, known=False)

    @rule(queue=queues)
    def a_client_takes_a_bell_and_dies(self, queue: str) -> None:
        if self.client.zpopmin(self.keys.queue(queue).bell):
            self.swallowed.add(queue)

    @rule(holder=holders)
    def a_process_dies(self, holder: str) -> None:
        for message in self.claimed_by(holder):
            message.known = False

    # -- settling ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.claimed_by())
    @rule(data=st.data(), what=st.sampled_from(Settlement))
    def settle(self, data: st.DataObject, what: Settlement) -> None:
        messages = data.draw(st.lists(st.sampled_from(self.claimed_by()), min_size=1, max_size=4, unique=True), label="messages")
        self.settler.settle([self.held(m.tag, m.claim, m.queue) for m in messages], what)
        for message in messages:
            if what is Settlement.ACK:
                self.remove(message)
            elif what is Settlement.REJECT:
                self.die(message)
            else:
                self.back(message, failed=what is Settlement.REQUEUE, seen=what is not Settlement.HAND_BACK)
        if what is Settlement.REJECT:
            for queue in {m.queue: None for m in messages}:
                self.evict(queue)

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), what=st.sampled_from((Settlement.REJECT, Settlement.REQUEUE, Settlement.RETURN, Settlement.HAND_BACK)))
    def settle_with_an_old_claim_number(self, data: st.DataObject, what: Settlement) -> None:
        tag, claim, queue = data.draw(st.sampled_from(self.stale), label="stale")
        self.settler.settle([self.held(tag, claim, queue)], what)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def ack_whatever_became_of_it(self, data: st.DataObject) -> None:
        tag, claim, queue = data.draw(st.sampled_from(self.stale), label="stale")
        message = self.messages.get(tag)
        if message is not None and message.place == "dead":
            return
        self.settler.settle([self.held(tag, claim, queue)], Settlement.ACK)
        if message is not None:
            self.remove(message)

    @rule(data=st.data(), ms=st.sampled_from((0, VISIBILITY_MS // 2)))
    def heartbeat(self, data: st.DataObject, ms: int) -> None:
        """For some that are held, and some that no longer are."""
        self.clock.advance(ms)
        current = [(m.tag, m.claim, m.queue) for m in self.claimed_by()]
        if not (current or self.stale):
            return
        chosen = data.draw(st.lists(st.sampled_from(current + self.stale), max_size=6, unique=True), label="held")
        by_queue: dict[str, list[tuple[str, int]]] = {}
        for tag, claim, queue in chosen:
            by_queue.setdefault(queue, []).append((tag, claim))
        keys: list[bytes] = []
        arguments: list[Any] = [VISIBILITY_MS]
        for queue, pairs in by_queue.items():
            keys += (self.keys.queue(queue).index, self.keys.queue(queue).message)
            arguments += (len(pairs), *itertools.chain(*pairs))
        lost = {tag.decode() for tag in self.wire.run(script("heartbeat"), keys, *arguments)}
        held = set(chosen) & set(current)
        # A stale pair and the present one of the same message may stand side by side; what is in the trash is as good as gone.
        assert lost | self.trashed >= {tag for tag, claim, queue in chosen if (tag, claim, queue) not in held}
        assert lost <= {tag for tag, claim, queue in chosen if (tag, claim, queue) not in held}
        for tag, _, _ in held:
            self.messages[tag].deadline = self.clock.now_ms + VISIBILITY_MS

    @rule(holder=holders, queue=queues, page=st.integers(1, 3))
    def a_session_is_handed_back(self, holder: str, queue: str, page: int) -> None:
        """What the server says the session holds and the process does not know of."""
        keys = self.keys.queue(queue)
        known = [m.tag for m in self.claimed_by(holder)]
        first, total = 0, 0
        while first >= 0:
            returned, first = self.wire.run(
                script("hand_back_session"), [keys.ready, keys.index, keys.message, keys.bell], holder, first, page, *known
            )
            total += returned
        gone = [m for m in self.live(queue, "claimed") if m.by == holder and not m.known]
        assert total == len(gone)
        for message in gone:
            self.back(message)

    def held(self, tag: str, claim: int, queue: str) -> Held:
        return Held(tag, queue, claim, "session")

    def die(self, message: Message) -> None:
        self.end_claim(message)
        if message.queue == TRANSIENT:
            del self.messages[message.tag]
            return
        message.place = "dead"
        # Dead letters of one millisecond are in the order of their tags.
        message.deadline = self.clock.now_ms

    def evict(self, queue: str) -> None:
        dead = sorted(self.live(queue, "dead"), key=lambda m: (m.deadline, m.tag))
        for message in dead[: max(0, len(dead) - DEAD_MAX)]:
            del self.messages[message.tag]

    # -- time and the sweep -----------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 999, 2_500, 11_000, VISIBILITY_MS, VISIBILITY_MS + 1)))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from((1, 5_000)))
    def the_clock_goes_back(self, ms: int) -> None:
        self.clock.advance(-ms)

    @rule(
        wanted=st.lists(queues, min_size=1, max_size=len(QUEUES), unique=True),
        limit=st.integers(1, 5),
        sweeper=st.sampled_from(SWEEPERS),
        take_over=st.booleans(),
    )
    def sweep(self, wanted: list[str], limit: int, sweeper: str, take_over: bool) -> None:
        now = self.clock.now_ms
        reply = self.run_sweep(wanted, limit, sweeper, take_over=take_over)
        for number, queue in enumerate(wanted):
            wait_ms, promoted, recovered, mine = reply[4 * number : 4 * number + 4]
            due = sorted((m for m in self.live(queue, "delayed") if m.eta <= now), key=lambda m: (m.eta, m.tag))
            overdue = sorted((m for m in self.live(queue, "claimed") if m.deadline <= now), key=lambda m: (m.deadline, m.tag))
            if not mine:
                assert (promoted, recovered) == (0, 0)
                assert not take_over or not (self.live(queue, "ready") or due or overdue)
                continue
            assert promoted == min(limit, len(due))
            # After an outage, or a jump of the clock, the living get time for a heartbeat first.
            assert recovered in (0, min(limit, len(overdue)))
            for message in due[:promoted]:
                message.place = "ready"
            for message in overdue[:recovered]:
                self.back(message, failed=True)
            self.rings(queue)
            later = [m.eta for m in self.live(queue, "delayed")]
            if later:
                assert wait_ms <= max(0, min(later) - now), "the sweeper sleeps past the next due time"

    def run_sweep(self, wanted: list[str], limit: int, sweeper: str, *, take_over: bool) -> list[int]:
        keys: list[bytes] = []
        for queue in wanted:
            of = self.keys.queue(queue)
            keys += (of.ready, of.delayed, of.index, of.message, of.bell, of.meta, of.trash)
        reply: list[int] = self.wire.run(
            script("sweep"), keys, sweeper, LEASE_MS, INTERVAL_MS, limit, int(take_over), GRACE_MS, LONGEST_GAP_MS
        )
        return reply

    # -- purge and delete -------------------------------------------------------------------------------------------------

    @rule(queue=queues, dies=st.booleans())
    def purge(self, queue: str, dies: bool) -> None:
        waiting = self.live(queue, "ready") + self.live(queue, "delayed")
        if dies:
            keys = self.keys.queue(queue)
            purged = self.wire.run(script("purge"), [keys.trash, keys.meta, keys.bell, keys.ready, keys.delayed])
        else:
            purged = self.queues.purge(queue)
        assert purged == len(waiting)
        for message in waiting:
            del self.messages[message.tag]
        self.rings(queue)

    @rule(queue=st.sampled_from(LASTING), dies=st.booleans())
    def delete_and_declare_again(self, queue: str, dies: bool) -> None:
        ready = len(self.live(queue, "ready"))
        if dies:
            keys = self.keys.queue(queue)
            sets = [keys.ready, keys.delayed, keys.index, keys.dead]
            self.wire.run(script("delete"), [keys.trash, keys.meta, keys.bell, keys.timer, keys.consumers, *sets], 0, 0)
        else:
            assert self.queues.delete(queue) == ready
        for message in [m for m in self.messages.values() if m.queue == queue]:
            self.trashed.add(message.tag)
            self.remove(message)
        self.queues.declare(queue, QueueArguments.parse(queue, durable=True))
        self.rings(queue)

    # -- what has to hold after each step ---------------------------------------------------------------------------------

    @invariant()
    def nothing_is_violated(self) -> None:
        assert violations(self.client, self.keys) == []

    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        for queue in QUEUES:
            keys = self.keys.queue(queue)
            with self.client.pipeline(transaction=False) as pipeline:
                pipeline.zrange(keys.ready, 0, -1, withscores=True)
                pipeline.zrange(keys.delayed, 0, -1, withscores=True)
                pipeline.zrange(keys.index, 0, -1, withscores=True)
                pipeline.zrange(keys.dead, 0, -1)
                pipeline.exists(keys.bell)
                ready, delayed, index, dead, bell = pipeline.execute()
            assert [(tag.decode(), int(score)) for tag, score in ready] == [(m.tag, m.score) for m in self.ready(queue)]
            assert {tag.decode(): int(eta) for tag, eta in delayed} == {m.tag: m.eta for m in self.live(queue, "delayed")}
            assert {tag.decode(): int(end) for tag, end in index} == {m.tag: m.deadline for m in self.live(queue, "claimed")}
            assert {tag.decode() for tag in dead} == {m.tag for m in self.live(queue, "dead")}
            assert not ready or bell or queue in self.swallowed, f"{queue!r} has ready messages and no bell"

    def _everything_comes_through(self) -> None:
        """Every publisher retries, every consumer dies; then all that is alive is delivered, once, in order."""
        for logical in self.unconfirmed():
            self.attempt(logical)
        for producer in self.late():
            self.wire.under_way[producer].clear()
        self.clock.advance(10 * VISIBILITY_MS)
        # The first passes may give the living time for a heartbeat.
        for _ in range(GRACE_MS // INTERVAL_MS + 2):
            while 0 in self.run_sweep(list(QUEUES), 500, "last", take_over=True)[::4]:
                pass
            self.clock.advance(INTERVAL_MS)
        assert violations(self.client, self.keys, swept=True) == []
        waiting = [m for m in self.messages.values() if m.place != "dead"]
        for queue in QUEUES:
            batch = self.claimers["h1"].claim([queue], 500, share=False)
            expected = sorted((m for m in waiting if m.queue == queue), key=lambda m: m.order)
            assert [m.tag for m in batch.messages] == [m.tag for m in expected]
            self.settler.settle([self.held(m.tag, m.claim, queue) for m in batch.messages], Settlement.ACK)
        for logical in self.logical:
            assert logical.tag is not None, f"message {logical.number} was confirmed and is nowhere"
        assert violations(self.client, self.keys, swept=True) == []
