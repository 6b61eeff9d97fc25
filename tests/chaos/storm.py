"""The storm: what it does to workers, server and network, at random, while tasks are published and run."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tests.chaos.faults.kinds import KINDS
from tests.chaos.faults.processes import living_in_group
from tests.chaos.load.queues import PLAIN
from tests.chaos.state import places
from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.judge.records import Rollback
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from celery_redis_plus.testing.server import EmbeddedServer
    from tests.chaos.crew import Crew
    from tests.chaos.servers import SetClock
    from tests.support.judge.lives import Life
    from tests.support.proxy import Proxy

#: Seconds that children outlive their worker, at most: a running task.
ORPHAN_S = 30.0
QUEUE = PLAIN


class Sender(Protocol):
    """Publishes one task after the other."""

    #: It publishes one, or is about to.
    busy: bool


class Happening(NamedTuple):
    """Something that a fault did: when (ticks, see `ledger.Entry`), of which kind it was, and the worker's main process."""

    at: float
    fault: str
    text: str
    worker: int


@dataclass
class Storm:
    """One run.

    Attributes:
        server: with every write on disk before it is confirmed; a failover makes it another one.
        crew: the workers.
        publishers: the proxy through which tasks are published.
        visibility_timeout_s: what the workers were given.
        seed: decides: of the same one, the number of each strike makes the same choices.
        make_server: starts one more server like `server`.
        deployment: of Sentinels or a cluster, whose primary is `server`; None where that stands alone.
        server_clock: that of all servers; None where it cannot be set.
        stalls: a folder: a file with the id of a worker stalls its maintenance.
        done: how often each fault has struck.
        diary: what happened to whom, and when.
        failures: what faults met that none should.
        rollbacks: when the server lost data.
        senders: who publishes: none does while `publishers_rest`.
        replicated: each publish waits for a replica.
        behind: returns how many of the tasks that were published have not ended.
        written_off: about so many of them are lost: the server lost data.
    """

    server: EmbeddedServer
    crew: Crew
    publishers: Proxy
    visibility_timeout_s: float
    seed: int
    make_server: Callable[[], EmbeddedServer] | None = None
    deployment: Any = None
    server_clock: SetClock | None = None
    stalls: Path = Path()
    done: Counter[str] = field(default_factory=Counter)
    diary: list[Happening] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rollbacks: list[Rollback] = field(default_factory=list)
    senders: list[Sender] = field(default_factory=list)
    behind: Callable[[], int] = lambda: 0
    written_off: int = 0
    publishers_rest: bool = False
    replicated: bool = False
    #: Process groups whose main process was killed.
    orphaned: list[int] = field(default_factory=list)
    publisher_processes: int = 0
    server_lock: threading.Lock = field(default_factory=threading.Lock)
    _strikes: int = 0
    _local: threading.local = field(default_factory=threading.local)
    _long: list[threading.Thread] = field(default_factory=list)

    def strike(self, fault: str) -> None:
        """Let `fault` happen; one that takes longer goes on while others strike."""
        self._strikes += 1
        if KINDS[fault].lasts:
            thread = threading.Thread(target=self._strike, args=(fault, self._strikes), name=fault, daemon=True)
            self._long.append(thread)
            thread.start()
        else:
            self._strike(fault, self._strikes)

    @property
    def chooser(self) -> random.Random:
        """What decides in the strike that this thread makes: it depends on nothing that others do meanwhile."""
        found: random.Random = self._local.chooser
        return found

    def now(self) -> float:
        return time.monotonic()

    def note(self, text: str, whom: Life | str = "") -> None:
        """Write into the diary what happens, and to whom."""
        worker = 0 if isinstance(whom, str) else whom.worker
        self.diary.append(Happening(self.now(), self._local.fault, f"{text} {whom}".rstrip(), worker))

    def rolled_back(self, since: float, text: str, *, spares_replicated: bool = False) -> None:
        """Note that the server has just lost what it did since a tick. Nothing else may be confirmed before it serves again."""
        rollback = Rollback(since, self.now(), spares_replicated)
        note(records.ROLLED_BACK, tick=rollback.at, detail={"since": since, "spares_replicated": spares_replicated})
        self.rollbacks.append(rollback)
        self.note(text)

    def write_off(self) -> None:
        """Note how many tasks are lost, about, now that the server serves again: publishers do not wait for their end."""
        with self.server.client() as client:
            self.written_off = max(0, self.behind() - sum(places(client, QUEUE).values()))

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Note that the server refuses writes within the block."""
        since = self.now()
        try:
            yield
        finally:
            note(records.WRITABLE, detail={"since": since})

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish within the block beside the `senders`: once they need not rest, and so that others wait for the end."""
        sender = SimpleNamespace(busy=False)
        self.senders.append(sender)
        while not sender.busy:
            wait_until(lambda: not self.publishers_rest, 60, "an end of the publishers' rest")
            sender.busy = True
            sender.busy = not self.publishers_rest
        try:
            yield
        finally:
            sender.busy = False
            self.senders.remove(sender)

    def keeps(self, began_at: float, confirmed_at: float, *, replicated: bool) -> bool:
        """Return whether the server has to have what it confirmed at a tick."""
        return not any(rollback.undoes(began_at, confirmed_at, replicated=replicated) for rollback in self.rollbacks)

    def _strike(self, fault: str, number: int) -> None:
        self._local.chooser, self._local.fault = random.Random(f"{self.seed} {number}"), fault
        try:
            if KINDS[fault].strike(self):
                self.done[fault] += 1
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.failures.append(f"{fault}: {type(error).__name__}: {error}")

    def calm(self) -> None:
        """Wait for the end of what is going on, and for the children of killed workers."""
        for thread in self._long:
            thread.join(120)
        wait_until(lambda: not any(map(living_in_group, self.orphaned)), ORPHAN_S, "the end of killed workers' children")

    def pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chooser.uniform(least_s, most_s))

    def outlast_leases(self) -> None:
        """Pause for longer than the visibility timeout."""
        self.pause(self.visibility_timeout_s * 1.2, self.visibility_timeout_s * 1.8)
