"""A broker in memory: the commands that a consumer claims with, and the connection that a delivery loop serves.

No server and no thread. `InMemoryClaims` has the interface of `ClaimCommands`; what a test sets up stands in its fields.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import kombu

from celery_redis_plus.broker.consumers.claims import MAX_QUEUES, Batch, RestrictedBatch, State, batch_of
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.delivering import Delivering
from celery_redis_plus.options import Options
from celery_redis_plus.stored_message import Claimed
from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.compat import HUB_READY

ENVELOPE = b'{"content-type":"text/plain","content-encoding":"utf-8","headers":{},"properties":{"delivery_info":{}}}'


class InMemoryClaims:
    """Queues of messages, and claims from them."""

    def __init__(self) -> None:
        self.ready: dict[str, deque[str]] = defaultdict(deque)
        #: Queues with rules for their consumers -> the state that a claim is told.
        self.restricted: dict[str, State] = {}
        #: What restricted claims are told else: `wait_s`, `activations`, `has_priorities`.
        self.told: dict[str, Any] = {}
        #: The claims made: (queues, credit).
        self.made: list[tuple[list[str], int]] = []
        #: Claims whose replies wait for `answer`.
        self.posted: deque[tuple[Sequence[str], int, bool, Any]] = deque()
        #: Settled messages: (settlement, tag).
        self.settled: list[tuple[Settlement, str]] = []
        #: Batched acks, which a claim takes along.
        self.acks: InMemoryAcks | None = None

    def publish(self, queue: str, *tags: str) -> None:
        self.ready[queue] += tags

    def claim(self, queues: Sequence[str], credit: int, *, share: bool, held: Sequence[int] = ()) -> Batch:
        self._take_acks()
        names = queues[:MAX_QUEUES]
        self.made.append((list(names), credit))
        managed = [name for name in names if name in self.restricted]
        found: list[Claimed] = []
        for number, name in enumerate(names):
            if name not in managed:
                left = credit - len(found)
                found += self._take(name, -(-left // (len(names) - number)) if share else left)
        return Batch(found, [name for name in names if self.ready[name] and name not in managed], managed)

    def post(self, queues: Sequence[str], credit: int, *, share: bool, held: Sequence[int] = (), done: Any) -> Sequence[str]:
        self._take_acks()
        self.posted.append((queues, credit, share, done))
        return queues

    def answer(self) -> None:
        """Reply to the oldest posted claim, in the form of the script's reply."""
        queues, credit, share, done = self.posted.popleft()
        batch = self.claim(queues, credit, share=share)
        reply = [b" ".join(b"%d" % (queues.index(name) + 1) for name in batch.more)]
        for message in batch.messages:
            reply += [b"%d %b 1 0 0" % (queues.index(message.queue) + 1, message.tag.encode()), message.envelope + b"\n"]
        done(reply, None)

    def read_reply(self, reply: Sequence[bytes], names: Sequence[str]) -> Batch:
        return batch_of(reply, names)

    def claim_restricted(
        self, queue: str, count: int, consumer: str, *, credit: int, activations: bytes, look: Any = None
    ) -> RestrictedBatch:
        self._take_acks()
        self.made.append(([queue], count))
        state = self.restricted.get(queue, State.PLAIN)
        found = self._take(queue, count) if state in (State.OK, State.PLAIN) else []
        told = {"wait_s": None, "activations": b"1", "has_priorities": False, **self.told}
        return RestrictedBatch(found, state, more=bool(found and self.ready[queue]), **told)

    def fetch_body(self, message: Claimed) -> bytes | None:
        return None

    def _take_acks(self) -> None:
        if self.acks is not None:
            self.acks.flush()

    def _take(self, queue: str, count: int) -> list[Claimed]:
        tags = [self.ready[queue].popleft() for _ in range(min(count, len(self.ready[queue])))]
        return [Claimed(tag, queue, 1, failures=0, redelivered=False, envelope=ENVELOPE, body=b"") for tag in tags]


class InMemoryAcks:
    """Settles at once, and gives released messages back in place."""

    def __init__(self, claims: InMemoryClaims, unacked: UnackedMessages) -> None:
        self._claims = claims
        self._unacked = unacked
        self.waiting: list[Any] = []

    def post(self, message: Any, settlement: Settlement) -> None:
        self._claims.settled.append((settlement, message.tag))
        self._unacked.discard(message)

    def batch_ack(self, message: Any) -> None:
        self.waiting.append(message)

    def flush(self, *, buffered: bool = False) -> None:
        while self.waiting:
            self.post(self.waiting.pop(0), Settlement.ACK)

    def flush_due(self) -> None:
        self.flush()

    def begin_delivery(self) -> None:
        self.flush()

    def end_delivery(self) -> None:
        pass

    def begin(self, message: Any) -> None:
        pass

    def settle_or_defer(self, messages: Sequence[Any], settlement: Settlement) -> None:
        for message in sorted(messages, key=lambda message: message.tag, reverse=True):
            self.post(message, settlement)
            self._claims.ready[message.queue].appendleft(message.tag)


class InMemoryWaiter:
    """The wait for wake-ups: a test ends it with `comes`."""

    def __init__(self, waker: Waker) -> None:
        self.waiting: tuple[bytes, ...] = ()
        #: Wake-ups that were passed on.
        self.passed_on: list[bytes] = []
        self._waker = waker
        self._came: bytes | None = None
        self._over = False

    def start_wait(self, wakeups: Sequence[bytes]) -> None:
        self.waiting = tuple(wakeups)

    def comes(self, wakeup: bytes | None) -> None:
        self._came, self._over = wakeup, True
        self._waker.wake()

    def arrived(self) -> bool:
        return self._over

    def take(self) -> bytes | None:
        self.waiting, self._over = (), False
        self._waker.clear()
        return self._came

    def wake(self) -> None:
        self._came, self._over = None, True

    def notify(self, wakeup: bytes) -> None:
        self.passed_on.append(wakeup)


class InMemorySession:
    """What a delivery loop and its channels use of a connection."""

    def __init__(self, **options: Any) -> None:
        self.id, self.publisher_session = "me", self
        self.options = Options.from_mapping(options)
        self.keys = Keys("")
        self.broken, self.unreported, self.loop_thread = False, False, None
        self.waker, ringer = Waker(), Waker()
        self.claim_commands = InMemoryClaims()
        self.commands = _Commands(self.claim_commands)
        self.connector = SimpleNamespace(credentials=None)
        self.waiter = InMemoryWaiter(ringer)
        self.wakeup_connection = SimpleNamespace(fileno=ringer.fileno, generation=1)
        self.stream_connection = None
        self.reader = SimpleNamespace(
            ready=(), wants=False, waiting=False, arrived=bool, apply_changes=bool, rest_s=float, next=lambda: None,
            unsubscribe=lambda queue: None,
        )  # fmt: skip
        unacked = UnackedMessages()
        self.service = SimpleNamespace(
            unacked_messages=unacked, active_tasks=None, delivering=Delivering(),
            start=lambda: None, check_thread=lambda: None, wake=lambda: None,
            consumed=SimpleNamespace(add=lambda *_: None, remove=lambda *_: None),
            consumer_lists=SimpleNamespace(run_soon=lambda: None, deregister=lambda *_: None),
            positions=SimpleNamespace(owned=lambda *_: [], find=lambda tag: None), process_end=SimpleNamespace(begun=False),
        )  # fmt: skip
        self.acknowledger = self.claim_commands.acks = InMemoryAcks(self.claim_commands, unacked)
        self.leases = SimpleNamespace(certain_s=math.inf, confirm=lambda message: not message.lease_lost)
        self.queues = SimpleNamespace(read=lambda queue: None, arguments=lambda queue: None)
        self.consumers = SimpleNamespace(
            join=lambda consumer, **_: consumer.queue in self.claim_commands.restricted, leave=lambda *_: None,
            suspend=lambda consumer: self.suspended.append(consumer.queue),
        )  # fmt: skip
        #: Queues that were told that their consumer has no credit any more.
        self.suspended: list[str] = []
        self.ownership = SimpleNamespace(check=lambda queue: None)
        self.tracking = SimpleNamespace(delivered=lambda *_: None, settled=lambda *_: None)
        self.bound: dict[str, Any] = {}
        self.keep_alive_s, self.inherited = math.inf, False
        self.bindings = SimpleNamespace()

    def check_open(self) -> None:
        pass

    check_process = keep_alive = check_open

    def look_at(self, processes: object) -> bool:
        return False

    def watch_queue(self, queue: str, consumer: Any = None) -> None:
        pass

    def new_consumer_id(self) -> str:
        return "me.1"


class _Commands:
    """The connection for commands, of which no reply is owed but that of a posted claim."""

    connected, has_pending, generation = True, False, 1

    def __init__(self, claims: InMemoryClaims) -> None:
        self._claims = claims
        self.lock = threading.RLock()
        self._waker = Waker()
        #: Queues that were asked whether they have messages, for channels that do not claim.
        self.asked: list[Sequence[bytes]] = []

    def fileno(self) -> int:
        return self._waker.fileno()

    def flush(self) -> None:
        pass

    def read_ready(self) -> None:
        pass

    def read_until(self, until: Any) -> None:
        while not until():
            self._claims.answer()

    def command_nowait(self, *arguments: Any, done: Any, **_: Any) -> None:
        self.asked.append(arguments[1:])
        done(self.command(*arguments), None)

    def command(self, name: str, *keys: bytes) -> int:
        """Reply to EXISTS."""
        assert name == "EXISTS"
        return sum(bool(self._claims.ready[key.decode().partition("{")[2].partition("}")[0]]) for key in keys)


class Consuming:
    """A delivery loop on a broker in memory, and what its channels were given."""

    def __init__(self, **options: Any) -> None:
        self.session = InMemorySession(**options)
        self.broker = self.session.claim_commands
        self.unacked = self.session.service.unacked_messages
        self.loop = DeliveryLoop(self.session, HUB_READY.of)
        self._transport = kombu.Connection("redisplus://").transport
        self._transport.session, self._transport._delivery_loop = self.session, self.loop  # noqa: SLF001
        #: The delivered messages, in their order.
        self.messages: list[Any] = []

    def channel(self, *queues: str, prefetch: int = 0, no_ack: bool = False) -> Channel:
        """Return a channel that consumes `queues`."""
        channel = Channel(self._transport)
        channel.basic_qos(prefetch_count=prefetch)
        for queue in queues:
            channel.basic_consume(queue, no_ack=no_ack, callback=self.messages.append, consumer_tag=queue)
        return channel

    def drain(self, count: int | None = None) -> list[str]:
        """Deliver until nothing comes, or up to `count` messages more; return the tags of these."""
        before = len(self.messages)
        while (count is None or len(self.messages) < before + count) and self.loop.drain(0):
            pass
        return [message.delivery_tag for message in self.messages[before:]]

    def ack(self, *tags: str) -> None:
        for message in self.messages:
            if message.delivery_tag in tags and not message.acknowledged:
                message.ack()

    def waiting(self, queue: str) -> list[str]:
        """Return what stands in the queue, unclaimed."""
        return list(self.broker.ready[queue])
