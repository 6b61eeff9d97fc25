"""What a forked child finds renewed."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import celery_redis_plus
from celery_redis_plus.connection.forks import fork_safe_property, lock_of, on_fork_in_child

PACKAGE = Path(celery_redis_plus.__file__).parent
#: They renew theirs in `forked`, with more that belongs to it; `forks` holds its own at each fork; `signals` is below it; a
#: demonstration does not fork.
BY_THEMSELVES = {"connection/forks.py", "connection/persistent_connection.py", "signals.py"}


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


class Slow:
    made, done = threading.Event(), threading.Event()

    @fork_safe_property
    def part(self):
        if threading.current_thread() is not threading.main_thread():
            self.made.set()
            self.done.wait(30)
        return "made"


def test_a_property_that_another_thread_makes_at_the_fork_can_be_made_in_the_child():
    thread = threading.Thread(target=lambda: Slow().part)
    thread.start()
    Slow.made.wait(30)
    pid = os.fork()
    if not pid:
        made = []
        child = threading.Thread(target=lambda: (Slow.done.set(), made.append(Slow().part)), daemon=True)
        child.start()
        child.join(5)
        os._exit(0 if made == ["made"] else 1)
    status = os.waitpid(pid, 0)[1]
    Slow.done.set()
    thread.join()
    assert status == 0


class Item:
    def __init__(self, told, *, fails=False):
        self.told, self.fails = told, fails
        on_fork_in_child(self)

    def forked(self):
        if self.fails:
            raise AttributeError("half made")
        self.told.append(self)


def test_one_item_that_fails_at_a_fork_keeps_no_other_from_it():
    told = []
    items = [Item(told, fails=number == 1) for number in range(3)]
    pid = os.fork()
    if not pid:
        os._exit(len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(items) - 1
