"""A delivery loop's place in Celery's event loop: file descriptors, wake-ups, and the timers that its deliveries have filled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.connection.persistent_connection import PersistentConnection
    from celery_redis_plus.connection.waker import Waker

#: Timers that kombu's loop fires in one turn: ten (`Hub.fire_timers`, kombu 5.7), of which one may be somebody else's.
TIMERS_A_TICK = 9
#: Seconds between two calls of `on_timer`.
TIMER_S = 2.0


class HubRegistration:
    """What one delivery_loop has registered with a kombu Hub, and how it makes the Hub turn again."""

    def __init__(self, waker: Waker, has_callbacks: Callable[[Any], bool]) -> None:
        """Take part in no loop yet.

        Args:
            waker: wakes the loop.
            has_callbacks: tells whether a loop has callbacks to call in its next turn.
        """
        self._waker = waker
        self._has_callbacks = has_callbacks
        self._loop: Any = None
        #: Whether an event loop serves the delivery loop.
        self.attached = False
        self._on_tick: Callable[[], None] | None = None
        self._timer: Any = None
        #: name -> (file descriptor, its generation)
        self._registered: dict[str, tuple[int, int]] = {}
        #: What deliveries have put into Celery's timer and the loop has not fired yet: ten entries a turn, and it must not sleep.
        self._timers_ahead = 0
        #: When a timer of the loop ends its sleep, on the monotonic clock, in seconds.
        self._wakes_at = math.inf

    def attach(self, loop: Any, on_tick: Callable[[], None], on_timer: Callable[[], None]) -> None:
        """Be served by `loop`: `on_tick` before it sleeps, `on_timer` every `TIMER_S`."""
        self._loop, self.attached = loop, True
        self._timers_ahead = 0
        self._wakes_at = math.inf
        self._on_tick = on_tick
        loop.on_tick.add(on_tick)
        loop.add_reader(self._waker.fileno(), self._woken_up)
        self._timer = loop.call_repeatedly(TIMER_S, on_timer)

    def detach(self) -> None:
        """Be served by no loop any more."""
        loop, self._loop = self._loop, None
        self.attached = False
        loop.on_tick.discard(self._on_tick)
        for descriptor in {self._waker.fileno(), *(descriptor for descriptor, _ in self._registered.values())}:
            loop.remove(descriptor)
        self._registered.clear()
        self._timer.cancel()

    def forked(self) -> None:
        """Forget the loop, in a child, without a call to it: its descriptors may be shared with the parent's."""
        self._loop = self._timer = None
        self.attached = False
        self._registered.clear()

    # -- its turns --------------------------------------------------------------------------------------------------------

    def begin_tick(self) -> None:
        """Note that the loop has fired timers since the last turn."""
        self._timers_ahead = max(0, self._timers_ahead - TIMERS_A_TICK)

    def count_timer_entries(self, entries: int) -> None:
        """Note that a delivery has put entries into Celery's timer."""
        self._timers_ahead += entries

    def needs_another_tick(self, *, delivered: bool) -> bool:
        """Return whether the loop has to turn again before it sleeps; `delivered`: this turn had deliveries."""
        # `on_tick` is a set: others, such as the prefork pool, which starts to write a job from there, may have had their turn
        # before a delivery in this one (Celery 5.7, `AsynPool`).
        others_check_again = delivered and len(self._loop.on_tick) > 1
        # What a delivery left for the loop's next turn (`call_soon`: Celery's acks) does not wake it by itself (kombu 5.7,
        # `Hub.create_loop`: the timeout was taken before `on_tick`).
        return bool(others_check_again or self._timers_ahead or self._has_callbacks(self._loop))

    def wake_in(self, seconds: float) -> None:
        """Have the loop turn again in `seconds`. It has taken its timeout for this turn, so one more comes at once."""
        at = time.monotonic() + seconds
        if at < self._wakes_at:
            self._wakes_at = at
            self._loop.call_later(seconds, self._slept)
            self.wake()

    def wake(self) -> None:
        """Have the loop turn again at once."""
        self._waker.wake()

    def _slept(self) -> None:
        self._wakes_at = math.inf

    def _woken_up(self) -> None:
        """Do nothing: being awake was the point, and the next tick clears it."""

    # -- descriptors ------------------------------------------------------------------------------------------------------

    def listen(self, name: str, commands: PersistentConnection, callback: Callable[[], None], *, wanted: bool) -> None:
        """Have the connection's present socket registered under `name`, or none.

        A closed socket leaves the system's poll set by itself, and its number may come back with the next socket: so the
        number alone does not tell whether it is registered.
        """
        current = (commands.fileno(), commands.generation) if wanted else None
        known = self._registered.get(name)
        if known == current:
            return
        if known is not None:
            del self._registered[name]
            if current is None or known[0] != current[0]:
                self._remove(known[0])
        if current is not None:
            for other, (descriptor, _) in list(self._registered.items()):
                if descriptor == current[0]:
                    del self._registered[other]
            self._registered[name] = current
            self._loop.add_reader(current[0], callback)

    def _remove(self, descriptor: int) -> None:
        if all(descriptor != other for other, _ in self._registered.values()):
            self._loop.remove(descriptor)
