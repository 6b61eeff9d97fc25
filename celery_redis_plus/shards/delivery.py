"""The handle of a delivery whose recipients are on several shards."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.transport.api import Callback, Delivery


class ShardsDelivery(Delivery):
    """A delivery that each shard tracks for its own recipients, under the same id."""

    def __init__(self, parts: Sequence[Delivery]) -> None:
        """Follow the deliveries on the shards."""
        self.id = parts[0].id
        self._parts = parts
        self._lock = lock_of(self)
        self._left = len(parts)
        self._watched = False
        self._callbacks: list[tuple[Callback, bool]] = []

    def forked(self) -> None:
        """Do nothing: the parts do."""

    def outcomes(self) -> Mapping[str, str]:
        """Return what is known of each recipient now. Raises as `Delivery.outcomes`."""
        return {recipient: outcome for part in self._parts for recipient, outcome in part.outcomes().items()}

    @property
    def resolved(self) -> bool:
        """Whether every recipient has answered, or was too late."""
        return all(part.resolved for part in self._parts)

    @property
    def complete(self) -> bool:
        """Whether every recipient has acked."""
        return all(part.complete for part in self._parts)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `Delivery.wait`, for the recipients on all shards."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(part.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0)) for part in self._parts)

    def on_complete(self, callback: Callback) -> None:
        """Call `callback(delivery)` once, as `Delivery.on_complete`."""
        self._call_at_end(callback, only_complete=True)

    def on_resolved(self, callback: Callback) -> None:
        """Call `callback(delivery)` once, as `Delivery.on_resolved`."""
        self._call_at_end(callback, only_complete=False)

    def _call_at_end(self, callback: Callback, *, only_complete: bool) -> None:
        with self._lock:
            over = self._left == 0
            if not over:
                self._callbacks.append((callback, only_complete))
            begins, self._watched = not self._watched and not over, True
        if over:
            if not only_complete or self.complete:
                callback(self)
        elif begins:
            for part in self._parts:
                part.on_resolved(self._ended)

    def _ended(self, _: Delivery) -> None:
        with self._lock:
            self._left -= 1
            callbacks = self._callbacks if self._left == 0 else []
        if callbacks:
            complete = self.complete
            # As of one shard: the callbacks for a complete one come first.
            for callback, only_complete in sorted(callbacks, key=lambda one: not one[1]):
                if complete or not only_complete:
                    callback(self)

    def __repr__(self) -> str:
        """Show the id and the parts."""
        return f"<ShardsDelivery {self.id}: {list(self._parts)}>"
