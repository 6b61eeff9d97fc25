"""A clock for upper bounds of times: it goes slower where a busy machine holds up this process, and others with it."""

from __future__ import annotations

import threading
from time import monotonic

#: Seconds of a tick. One that takes longer than twice that was held up, and counts no more than that.
TICK_S = 0.02


class _Ticker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="machine time", daemon=True)
        self.seconds = 0.0

    def run(self) -> None:
        # Not `time.sleep`, in whose place some tests put another.
        never, last = threading.Event(), monotonic()
        while not never.wait(TICK_S):
            now = monotonic()
            self.seconds += min(now - last, 2 * TICK_S)
            last = now


_tickers: list[_Ticker] = []


def machine_time() -> float:
    """Return seconds, as `time.monotonic` does on an idle machine; fewer pass on a busy one.

    For "it took less than" only: a lower bound needs `time.monotonic`.
    """
    # A fork has none that runs.
    if not _tickers or not _tickers[-1].is_alive():
        _tickers.append(_Ticker())
        _tickers[-1].start()
    return _tickers[-1].seconds
