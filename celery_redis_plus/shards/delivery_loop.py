"""Serves the delivery loops of several shards, under Celery's event loop and under `drain_events`; each fails alone."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.consumer.delivery_loop import CLAIMS_BEYOND_S, HEALTH_S
from celery_redis_plus.shards.guarded_hub import GuardedHub
from celery_redis_plus.shards.refusals import REFUSALS, REFUSES_WRITES
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.consumer.delivery_loop import DeliveryLoop

T = TypeVar("T")

#: Seconds between two looks at the other shards while one has plenty to deliver: it may have all the credit, and no wake-up is
#: waited for without.
LOOK_S = 0.05

#: What may be the end of one shard's loop.
ENDS_LOOP: tuple[type[Exception], ...] = (*CONNECTION_ERRORS, *REFUSALS)


class ShardsLoop:
    """Has the methods of a `DeliveryLoop` that a transport and a worker call, for those of all shards that consume."""

    def __init__(self, on_lost: Callable[[int, Exception], None], on_back: Callable[[], None]) -> None:
        """Serve none yet.

        Args:
            on_lost: called with the number of a shard that was lost, and the error. Raises where no shard is left.
            on_back: called before each turn: connects to shards that are back.
        """
        self._on_lost, self._on_back = on_lost, on_back
        self.waker = Waker()
        self._loops: dict[int, DeliveryLoop] = {}
        self._hub: Any = None
        #: The shards that deliver, and claim, first the next time.
        self._next_delivery = self._next_claim = 0
        self._look_at = 0.0
        #: The last refusal that an application's callback has let out: it is no error of the loop that has called it.
        self.raised: Exception | None = None
        self._worker: tuple[str, dict[str, Any]] | None = None

    def wake(self) -> None:
        """Have the loop look at what there is to do. From any thread, and from a signal handler."""
        self.waker.wake()

    def add(self, number: int, loop: DeliveryLoop) -> None:
        """Serve the loop of a shard, too."""
        if self._loops.get(number) is loop:
            return
        self._loops[number] = loop
        if self._worker is not None:
            loop.set_worker(self._worker[0], **self._worker[1])
        if self._hub is not None:
            loop.attach(GuardedHub(self._hub, partial(self._guard, number, loop)))
        self.wake()

    def serves(self, number: int) -> bool:
        """Return whether it serves the loop of a shard, whose connection may have broken since its last turn."""
        return number in self._loops

    def remove(self, number: int) -> None:
        """Serve the loop of a shard no more; it leaves the event loop."""
        loop = self._loops.pop(number, None)
        if loop is not None:
            loop.detach()

    def set_worker(self, name: str, **about: Any) -> None:
        """Tell the loops, and those that are added, of the worker, as `DeliveryLoop.set_worker`."""
        self._worker = name, about
        for loop in self._loops.values():
            loop.set_worker(name, **about)

    def _guard(self, number: int, loop: DeliveryLoop, call: Callable[[], T]) -> T | None:
        """Call something that a loop does. What is the end of its connection ends in `on_lost`, which raises for the last one.

        So does a refusal of its server, whose connection is left: the other shards go on.
        """
        try:
            return call()
        except ENDS_LOOP as error:
            session = loop.server.session.publisher_session
            raised, self.raised = self.raised, None
            if not session.broken:
                if error is raised or not isinstance(error, REFUSES_WRITES):
                    raise
                session.abandon()
            if self._loops.get(number) is loop:
                self.remove(number)
            self._on_lost(number, error)
            return None

    def _from(self, first: int) -> list[tuple[int, DeliveryLoop]]:
        """Return the loops, that of the shard `first` before the others, or of the next one that there is."""
        return sorted(self._loops.items(), key=lambda one: (one[0] < first, one[0]))

    def _note_claim(self, number: int, loop: DeliveryLoop, claims: int, passed: list[int]) -> None:
        """Let the next shard be the first to claim, after the first one that has: it may take all the credit that there is."""
        if loop.server.fetcher.claims != claims and not passed:
            passed.append(number)
            self._next_claim = number + 1

    def _look_around(self, but: DeliveryLoop | None, loops: list[tuple[int, DeliveryLoop]]) -> None:
        """Have the others look for messages while one delivers, now and then."""
        if len(loops) > 1 and time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            for number, loop in loops:
                if loop is not but:
                    self._guard(number, loop, loop.server.look_around)

    def _note_credit(self, loops: list[tuple[int, DeliveryLoop]]) -> None:
        """Pass queues with consumer priorities on, where another shard has taken the credit."""
        for number, loop in loops if len(loops) > 1 else ():
            self._guard(number, loop, loop.server.note_credit)

    # -- without an event loop --------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None) -> bool:
        """Deliver one message, as `DeliveryLoop.drain`, of any shard. Raises as that where it was the last one."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._on_back()
            if self._deliver():
                return True
            loops = self._from(self._next_claim)
            if self._look(loops):
                self._note_credit(loops)
                # A claim may bring nothing: see `DeliveryLoop.drain`.
                if deadline is None or time.monotonic() < deadline + CLAIMS_BEYOND_S:
                    continue
                return self._deliver()
            left = HEALTH_S if deadline is None else deadline - time.monotonic()
            if not self._wait(loops, max(min(left, HEALTH_S), 0.0)) and left <= 0:
                return False

    def _deliver(self) -> bool:
        """Deliver one message, or broadcasts that have come together, of the shards in turn."""
        loops = self._from(self._next_delivery)
        for number, loop in loops:
            if self._guard(number, loop, loop.deliver):
                self._next_delivery = number + 1
                self._look_around(loop, loops)
                return True
        return False

    def _look(self, loops: list[tuple[int, DeliveryLoop]]) -> bool:
        """Have each claim where it may; return whether anything may have come."""
        came, passed = False, list[int]()
        for number, loop in loops:
            claims = loop.server.fetcher.claims
            came = bool(self._guard(number, loop, loop.look)) or came
            self._note_claim(number, loop, claims, passed)
        return came

    def _wait(self, loops: list[tuple[int, DeliveryLoop]], at_most_s: float) -> bool:
        """Wait until something has come of any shard, and read it; return whether something has."""
        waits = [(number, loop, self._guard(number, loop, loop.prepare_wait)) for number, loop in loops]
        ready = [(number, loop, found) for number, loop, found in waits if found is not None]
        descriptors = [one for _, _, found in ready for one in found.values()]
        at_most_s = min([at_most_s, *(loop.wait_at_most_s() for _, loop, _ in ready)])
        readable = wait_readable([self.waker.fileno(), *descriptors], max(at_most_s, 0.0))
        self.waker.clear()
        passed = list[int]()
        for number, loop, found in ready:
            own = [one for one in found.values() if one in readable]
            if own or not readable:
                claims = loop.server.fetcher.claims
                self._guard(number, loop, partial(loop.read_ready, found, own))
                self._note_claim(number, loop, claims, passed)
        if passed:
            self._note_credit(loops)
        return bool(readable)

    # -- under Celery's event loop ----------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether an event loop serves it."""
        return self._hub is not None

    def attach(self, hub: Any) -> None:
        """Serve from kombu's event loop."""
        self.detach()
        self._hub = hub
        hub.on_tick.add(self.on_tick)
        hub.add_reader(self.waker.fileno(), self.waker.clear)
        for number, loop in list(self._loops.items()):
            loop.attach(GuardedHub(hub, partial(self._guard, number, loop)))

    def detach(self) -> None:
        """Leave the event loop."""
        hub, self._hub = self._hub, None
        if hub is None:
            return
        hub.on_tick.discard(self.on_tick)
        hub.remove(self.waker.fileno())
        for loop in self._loops.values():
            loop.detach()

    def on_tick(self) -> None:
        """Take a turn of each loop before the event loop sleeps. Raises as `DeliveryLoop.on_tick`, for the last shard."""
        self._on_back()
        loops, passed = self._from(self._next_claim), list[int]()
        for number, loop in loops:
            delivered, claims = loop.server.deliveries, loop.server.fetcher.claims
            self._guard(number, loop, loop.on_tick)
            if self._hub is None:
                return
            self._note_claim(number, loop, claims, passed)
            if delivered != loop.server.deliveries:
                self._look_around(loop, loops)
        if passed:
            self._note_credit(loops)

    def forked(self) -> None:
        """Forget the event loop, in a child; the loops do so themselves."""
        self._hub = None

    def close(self) -> None:
        """Leave the event loop, and close what wakes it."""
        self.detach()
        self._loops.clear()
        self.waker.close()
