"""Faults of a deployment of several servers: Sentinels, or the nodes of a cluster, promote a replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.chaos.faults.server import publishers_rest

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds within which clients leave an old primary that still works, on a busy machine; and between two moments of that.
LEFT_S, MOMENT_S = 3.0, 0.5


def fail_over(storm: Storm) -> bool:
    """A failover by command: with Sentinels the old primary takes writes until each client has left it."""
    return _replace(storm, "fail over", storm.deployment.failover)


def crash_primary(storm: Storm) -> bool:
    """SIGKILL for the primary: what its replica has not got is lost."""
    return _replace(storm, "kill the primary", storm.deployment.crash)


def _replace(storm: Storm, what: str, change: Callable[[], Any]) -> bool:
    with storm.server_lock:
        storm.deployment.wait_until_whole()
        with _perhaps_replicated(storm):
            storm.pause(0.2, 1.0)
            since = time.monotonic()
            storm.note(what)
            # Two servers take writes until each client has left the old one: what that did is lost at any of these moments.
            with ThreadPoolExecutor(1) as pool:
                changed = pool.submit(change)
                while not (changed.done() and time.monotonic() > since + LEFT_S):
                    time.sleep(MOMENT_S)
                    storm.rolled_back(since, "a replica becomes the primary", spares_replicated=True)
                changed.result()
            # Behind this one the old primary is a replica: it confirms nothing any more.
            storm.deployment.wait_until_whole()
        storm.rolled_back(since, "all servers follow the primary", spares_replicated=True)
        storm.write_off()
    return True


@contextmanager
def _perhaps_replicated(storm: Storm) -> Iterator[None]:
    """Have publishers wait for a replica within the block, or not."""
    if storm.chooser.random() < 0.5:
        # A publish that began before, and does not wait, is over.
        with publishers_rest(storm) as rest:
            storm.replicated = rest
    try:
        yield
    finally:
        storm.replicated = False
