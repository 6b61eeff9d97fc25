"""Celery's event loop as the delivery loop of one shard sees it: what it registers there cannot break the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Callback = Callable[..., Any]
#: Calls a function; what a lost shard raises goes no further.
Guard = Callable[[Callback], Any]


class _Ticks:
    """Takes the place of the set of what a loop calls before it sleeps: several loops take their turns in an order of ours."""

    def __init__(self, real: set[Callback]) -> None:
        self._real = real

    def add(self, on_tick: Callback) -> None:
        """Do nothing: who composes the loops calls them."""

    def discard(self, on_tick: Callback) -> None:
        """Do nothing."""

    def __len__(self) -> int:
        return len(self._real)


class GuardedHub:
    """A kombu Hub for the loop of one shard: callbacks go through a guard."""

    def __init__(self, hub: Any, guard: Guard) -> None:
        """Register with `hub`; each callback is called by `guard`."""
        self._hub = hub
        self._guard = guard
        self.on_tick = _Ticks(hub.on_tick)

    def __getattr__(self, name: str) -> Any:
        """Return what is the same for all."""
        return getattr(self._hub, name)

    def add_reader(self, descriptor: int, callback: Callback, *args: Any) -> Any:
        """Call `callback` when something can be read."""
        return self._hub.add_reader(descriptor, lambda *given: self._guard(lambda: callback(*given)), *args)

    def call_later(self, seconds: float, callback: Callback, *args: Any) -> Any:
        """Call `callback` once."""
        return self._hub.call_later(seconds, lambda: self._guard(lambda: callback(*args)))

    def call_repeatedly(self, seconds: float, callback: Callback, *args: Any) -> Any:
        """Call `callback` again and again."""
        return self._hub.call_repeatedly(seconds, lambda: self._guard(lambda: callback(*args)))
