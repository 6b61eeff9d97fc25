"""Waits for file descriptors: the one place that knows which of the system's calls are there under gevent and eventlet."""

from __future__ import annotations

import math
import select
from collections.abc import Collection


def several_may_wait() -> bool:
    """Return whether one greenlet may wait for a descriptor that another one reads: eventlet ends the wait of one of the two."""
    return hasattr(select, "poll")


def wait_readable(descriptors: Collection[int], timeout_s: float | None) -> set[int]:
    """Return those of `descriptors` that are readable (or broken, which a read will tell), waiting at most `timeout_s` seconds.

    The modules' functions are looked up at each call: gevent and eventlet replace them after our import. eventlet has no
    `poll`; its `select` goes up to descriptor 1,023.
    """
    if several_may_wait():
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
        events = poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        return {descriptor for descriptor, _ in events}
    readable, _, broken = select.select(list(descriptors), [], list(descriptors), timeout_s)
    return {*readable, *broken}
