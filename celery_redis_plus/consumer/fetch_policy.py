"""How much a connection claims at once and how soon again: `fetch_batch_size`, `overfetch_factor`, `min_fetch_interval`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED

if TYPE_CHECKING:
    from celery_redis_plus.consumer.hub_registration import HubRegistration
    from celery_redis_plus.options import Options

#: Most messages of a claim, and in the buffer of a channel without a prefetch limit, where the options say nothing.
UNLIMITED = min(100, MAX_CLAIMED)


class FetchPolicy:
    """The pace of one connection's claims."""

    def __init__(self, options: Options, hub: HubRegistration) -> None:
        """Keep to `options`; the loop of `hub` turns again when a rest is over."""
        #: The most messages that a claim takes.
        self.batch = options.fetch_batch_size or UNLIMITED
        #: Whether claims are made while claimed messages wait to be delivered.
        self.overfetches = options.overfetch_factor > 1
        self._interval_s = options.min_fetch_interval
        self._hub = hub
        self._delayed_until = 0.0

    def claimed(self) -> None:
        """Note that a claim is made now."""
        if self._interval_s:
            self._delayed_until = time.monotonic() + self._interval_s

    def delay_s(self) -> float:
        """Return the seconds for which no claim may be made."""
        if not self._delayed_until:
            return 0.0
        rest_s = max(0.0, self._delayed_until - time.monotonic())
        if rest_s and self._hub.attached:
            self._hub.wake_in(rest_s)
        return rest_s
