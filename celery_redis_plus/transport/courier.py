"""Sends the acks that are kept for a loop when the loop does not come to it.

A solo worker runs its tasks in a turn of the loop; one with threads lets its loop sleep while they work.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from celery_redis_plus.topology import forks

if TYPE_CHECKING:
    from celery_redis_plus.broker.settling import Settler

#: Seconds between two looks. A loop with short tasks has sent by itself what it kept, and a look takes the interpreter from it.
LOOK_S = 0.005
#: Seconds by which an ack has to be overdue: until then its loop is about to send it.
OVERDUE_S = 0.001
#: Looks without anything to send after which the thread waits to be told.
QUIET_LOOKS = 20
#: Seconds without being told after which the thread ends.
IDLE_END_S = 10.0


class Courier:
    """A thread that runs while acks are kept for a loop."""

    def __init__(self, settler: Settler) -> None:
        """Look after what `settler` gathers, from `start` to `stop`; no thread before the first `expect`."""
        self._settler = settler
        self._stopped = True
        self._reset()
        forks.watch(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._told = threading.Event()
        self._thread: threading.Thread | None = None
        #: Whether the thread looks again by itself.
        self._looks = False

    def forked(self) -> None:
        """Have no thread yet, in a child."""
        self._reset()

    def start(self) -> None:
        """Look after what is gathered from now on; after a `stop` as well."""
        self._stopped = False

    def expect(self) -> None:
        """See to it that what has been gathered leaves within `LOOK_S` after it is overdue. From any thread."""
        if self._looks:
            return
        with self._lock:
            self._looks = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="celery-redis-plus-courier", daemon=True)
                self._thread.start()
            else:
                self._told.set()

    def stop(self) -> None:
        """End the thread, soon; what is gathered from now on leaves as it is expected."""
        self._stopped = True
        self._told.set()

    def _run(self) -> None:
        while True:
            self._look()
            self._looks = False
            if self._settler.gathers and not self._stopped:
                # It came after the last look, and was told to one who looked.
                self._looks = True
                continue
            self._told.wait(IDLE_END_S)
            with self._lock:
                if self._told.is_set() and not self._stopped:
                    self._told.clear()
                    continue
                self._thread = None
            # Whoever comes from now on finds no thread, and starts one; whoever came before has gathered already.
            self._settler.release()
            return

    def _look(self) -> None:
        quiet = 0
        while quiet < QUIET_LOOKS and not self._stopped:
            time.sleep(LOOK_S)
            quiet = 0 if self._settler.gathers else quiet + 1
            self._settler.release_due(grace_s=OVERDUE_S)
