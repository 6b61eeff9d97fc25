"""The seconds of this machine, those included in which it is suspended: the server's time goes on meanwhile.

What is compared with a time that the server keeps (claims, heartbeats, subscriptions, what it remembers of a publisher) reads
this clock, and so do the maintenance tasks and their slices, which share one schedule. Patience within one call reads
`time.monotonic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

#: Seconds since an arbitrary moment; never goes back. Only Linux has such a clock: elsewhere it stands still in a suspend.
#: Source: clock_gettime(2), CLOCK_BOOTTIME. Call it as `clock.now_s()`, so that a test can replace it
#: (`tests/support/process_clock.py`): a process has one clock, and no object gets one of its own.
now_s: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
