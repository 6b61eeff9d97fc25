"""What a forked child finds renewed."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import celery_redis_plus
from celery_redis_plus.connection.forks import lock_of

PACKAGE = Path(celery_redis_plus.__file__).parent
#: They renew theirs in `forked`, with more that belongs to it; `signals` is below `forks`; a demonstration does not fork.
BY_THEMSELVES = {"connection/persistent_connection.py", "signals.py", "demo/console.py"}


class Owner:
    def __init__(self):
        self.lock = lock_of(self, "lock")


def test_a_lock_that_another_thread_holds_at_the_fork_is_open_in_the_child():
    owner, held, done = Owner(), threading.Event(), threading.Event()

    def hold():
        with owner.lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    pid = os.fork()
    if not pid:
        os._exit(0 if owner.lock.acquire(timeout=5) else 1)
    status = os.waitpid(pid, 0)[1]
    assert owner.lock.locked(), "the parent's is still held"
    done.set()
    thread.join()
    assert status == 0


def test_every_lock_of_the_package_is_renewed_in_a_child():
    made = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"threading\.(Lock|RLock|Condition)\(", path.read_text())
    }
    assert made == BY_THEMSELVES
