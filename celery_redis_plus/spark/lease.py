"""One writer at a time in an object store, which has no lock and, by pyarrow, no conditional write.

All that it needs: who reads after a write sees it, and who lists sees what was written before (S3 since 2020, Google, Azure). A
writer announces itself in an object of its own, then looks whether there is another one. Of two that do that at once, the later
one to write sees the other. So never do both go on; both may withdraw, and try again.

    leases/WORK/NUMBER-OWNER.N.json    {"state": "asking" | "holding" | "released", "beat": N, "base": what counted at its start}

A holder puts a new object in the place of its last one every few seconds: in Azure's store, one that is written anew is empty
for a while. One whose object stays the same for `SILENT_S` is taken for dead, and the next holder gets a higher number. If it was
only slow and wakes up, it does no harm:

* what it writes carries its number, and counts only where the next holder found it (`base`) when it began;
* it looks for a higher number after each write (`verify`). Where it sees none, the next holder announces itself later, and finds
  what was written.

No clocks are compared: each process sees by its own whether an object changes.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import CeleryRedisPlusError, TablesUnusable

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage

#: Seconds between two changes of a holder's object, and those after which one that has not changed is taken for dead.
BEAT_S, SILENT_S = 5.0, 25.0
#: After so many changes a holder looks whether it was replaced, also where it writes nothing.
BEATS_A_LOOK = 4
#: Seconds between two looks at a holder that may be dead.
POLL_S = 0.5
#: So often a holder may put a new object in the place of one that was just listed.
LOOKS = 20
#: So often two that began at once try again.
ATTEMPTS = 10

ASKING, HOLDING, RELEASED = "asking", "holding", "released"


@dataclass(frozen=True)
class Term:
    """The last object of one holder.

    Attributes:
        name: of the holder.
        objects: those of its objects that are there.
        number: orders the holders.
        state: `ASKING`, `HOLDING` or `RELEASED`.
        base: what counted when it began; None is not noted yet, and nothing was written by it then.
        content: all that the object has.
    """

    name: str
    objects: tuple[str, ...]
    number: int
    state: str
    base: Any
    content: Mapping[str, Any]


def terms(storage: Storage, work: str) -> list[Term]:
    """Return those that hold, have held or ask to, by number."""
    found: list[Term] = []
    for _ in range(LOOKS):
        found, is_settled = _listed(storage, work)
        if is_settled:
            break
    return found


def _listed(storage: Storage, work: str) -> tuple[list[Term], bool]:
    """Return what is there, and whether nothing went while it was read: its holder may have put another in its place."""
    objects: dict[str, list[str]] = {}
    contents: dict[str, dict[str, Any]] = {}
    is_settled = True
    for name in sorted(storage.names(f"leases/{work}")):
        folder, _, its_name = name.rpartition("/")
        content, holder = storage.read(name), f"{folder}/{its_name.partition('.')[0]}"
        objects.setdefault(holder, []).append(name)
        is_settled = is_settled and content is not None
        # One that is not whole yet says nothing: the one before is there, or its holder has only begun to ask.
        if content:
            contents[holder] = json.loads(content)
    found = [
        Term(holder, tuple(objects[holder]), _number(holder), said["state"], said.get("base"), said)
        for holder, said in contents.items()
    ]
    return sorted(found, key=lambda term: (term.number, term.name)), is_settled


def _number(holder: str) -> int:
    return int(holder.rpartition("/")[2].partition("-")[0])


def declared(found: list[Term]) -> tuple[Term | None, bool]:
    """Return the last holder whose `base` is noted, and whether a later one is about to note its own."""
    held = [term for term in found if term.state != ASKING]
    known = [term for term in held if term.base is not None]
    return (known[-1] if known else None), bool(held) and held[-1].base is None


class Lease:
    """The right to do a kind of work, from `acquire` to `release`.

    Args:
        storage: the store.
        work: names the kind of work.
        words: for errors.

    Attributes:
        number: of this holder; 0 before `acquire`.
    """

    def __init__(self, storage: Storage, work: str, words: str) -> None:
        self.number = 0
        self._storage = storage
        self._work = work
        self._words = words
        self._name = ""
        #: Those that it has written and not removed.
        self._objects: list[str] = []
        self._writes = 0
        self._state: dict[str, Any] = {}
        self._lock = lock_of(self)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, base: Callable[[list[Term]], Any]) -> None:
        """Become the holder.

        Args:
            base: returns what counts now, of the earlier holders. It is called once no earlier one can add to it.

        Raises:
            TablesUnusable: another one holds it, and is alive.
        """
        for _ in range(ATTEMPTS):
            others = [term for term in terms(self._storage, self._work) if term.state != RELEASED]
            silent = self._wait_for_silence(others) if others else []
            seen = terms(self._storage, self._work)
            self.number = max((term.number for term in seen), default=0) + 1
            self._name = f"leases/{self._work}/{self.number:08}-{uuid.uuid4().hex}"
            self._state = {"state": ASKING, "beat": 0, "host": socket.gethostname()[:64], "pid": os.getpid()}
            self._write()
            if self._is_alone(silent):
                break
            self._storage.remove(self._objects)
            self._name, self._objects = "", []
            time.sleep(random.uniform(0.1, 1.0))  # noqa: S311 - not a secret
        else:
            raise self._refused()
        self._state["state"] = HOLDING
        self._write()
        earlier = [term for term in terms(self._storage, self._work) if term.number < self.number]
        self._state["base"] = base(earlier)
        self._write()
        # Nobody asks for what was before the last one that has noted its base.
        self._storage.remove(name for term in earlier for name in term.objects)
        self._thread = threading.Thread(target=self._keep, name=f"lease {self._work}", daemon=True)
        self._thread.start()

    def verify(self) -> None:
        """Make sure that no other holder has begun: what was written before this call is found by any later one.

        Raises:
            TablesUnusable: one has.
        """
        if any(term.number > self.number and term.state != ASKING for term in terms(self._storage, self._work)):
            self._ended.set()
            raise TablesUnusable(
                f"another {self._words} has taken over in {self._storage}, since this one was silent for {SILENT_S:.0f} s; "
                "what it had not noted yet is done again"
            )

    def release(self) -> None:
        """Let the next one begin at once; where the store does not answer, it begins after `SILENT_S`."""
        self.fall_silent()
        if not self._name:
            return
        self._state["state"] = RELEASED
        with suppress(CeleryRedisPlusError, OSError):
            self._write()

    def fall_silent(self) -> None:
        """Change its object no more, as where its process has died."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _is_alone(self, silent: list[Term]) -> bool:
        """Return whether there is no other one but those that are dead, and released ones."""
        dead = {term.name: term.content for term in silent}
        for term in terms(self._storage, self._work):
            is_over = term.state == RELEASED or dead.get(term.name) == term.content
            if term.name != self._name and (not is_over or term.number >= self.number):
                return False
        return True

    def _wait_for_silence(self, others: list[Term]) -> list[Term]:
        """Return those of the others that are dead.

        Raises:
            TablesUnusable: one is alive.
        """
        before = {term.name: term.content for term in others}
        until = time.monotonic() + SILENT_S
        while before and time.monotonic() < until:
            time.sleep(POLL_S)
            now = {term.name: term for term in terms(self._storage, self._work) if term.state != RELEASED}
            before = {name: content for name, content in before.items() if name in now}
            if any(name not in before or term.content != before[name] for name, term in now.items()):
                raise self._refused()
        return [term for term in others if term.name in before]

    def _refused(self) -> TablesUnusable:
        return TablesUnusable(f"another {self._words} runs in {self._storage}; wait until it is done")

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._state["beat"] += 1
            # Where the store does not answer, the next one may come through. One that was replaced is silent from now on.
            with suppress(CeleryRedisPlusError, OSError):
                if self._state["beat"] % BEATS_A_LOOK == 0:
                    self.verify()
                self._write()

    def _write(self) -> None:
        with self._lock:
            self._writes += 1
            self._objects.append(f"{self._name}.{self._writes:08}.json")
            self._storage.write(self._objects[-1], json.dumps(self._state).encode())
            # Only now: somebody may look at any moment.
            self._storage.remove(self._objects[:-1])
            self._objects = self._objects[-1:]
