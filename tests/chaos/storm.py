"""The storm: what it does to workers, server and network, at random, while tasks are published and run."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from celery_redis_plus.testing.server import EmbeddedServer
    from tests.chaos.crew import Crew, Member
    from tests.chaos.publishers import Publisher
    from tests.support.proxy import Proxy

PREFIX = "celery-redis-plus:"
#: Seconds within which publishers have to be idle, for a fault that wants that.
IDLE_S = 5.0


@dataclass
class Storm:
    """One run.

    Attributes:
        server: with every write on disk before it is confirmed.
        crew: the workers.
        publishers: the proxy through which tasks are published.
        visibility_timeout_s: what the workers were given.
        seed: decides: of the same one, the number of each strike makes the same choices.
        done: how often each fault has struck.
        diary: what happened to whom, and when (ticks, see `ledger.Entry`).
        failures: what faults met that none should.
    """

    server: EmbeddedServer
    crew: Crew
    publishers: Proxy
    visibility_timeout_s: float
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    diary: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: Whoever publishes: nobody does while the memory is full.
    senders: list[Publisher] = field(default_factory=list)
    memory_full: bool = False
    _strikes: int = 0
    _local: threading.local = field(default_factory=threading.local)
    _long: list[threading.Thread] = field(default_factory=list)
    _server_lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, fault: str) -> None:
        """Let `fault` happen; one that takes longer goes on while others strike."""
        self._strikes += 1
        if fault in LONG:
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

    def note(self, text: str) -> None:
        self.diary.append((time.monotonic(), text))

    def _strike(self, fault: str, number: int) -> None:
        self._local.chooser = random.Random(f"{self.seed} {number}")
        try:
            if FAULTS[fault](self):
                self.done[fault] += 1
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.failures.append(f"{fault}: {type(error).__name__}: {error}")

    def calm(self) -> None:
        """Wait for the end of what is going on."""
        for thread in self._long:
            thread.join(120)

    def pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chooser.uniform(least_s, most_s))

    # ---- processes

    def kill_worker(self) -> bool:
        with self.crew.one(self.chooser) as member:
            if member is None:
                return False
            self.note(f"kill {member.life}")
            member.kill()
            self.pause(0, 0.2)
            member.start()
        return True

    def stop_worker(self) -> bool:
        with self.crew.one(self.chooser) as member:
            if member is None:
                return False
            member.worker.wait_until_ready(60)
            self.note(f"stop {member.life}")
            status = member.stop()
            if status:
                self.failures.append(f"a warm shutdown ended with {status}: {member.worker.tail()}")
            member.start()
        return True

    def freeze_worker(self) -> bool:
        with self.crew.one(self.chooser) as member:
            if member is None:
                return False
            self.note(f"freeze {member.life}")
            with member.silent():
                member.worker.freeze()
                self.pause(self.visibility_timeout_s * 1.2, self.visibility_timeout_s * 1.8)
                member.worker.thaw()
            self.note(f"thaw {member.life}")
        return True

    def kill_server(self) -> bool:
        with self._server_lock:
            self.note("kill the server")
            self.server.kill()
            self.pause(0, 1)
            self.server.start()
            self.note("the server is back")
        return True

    def restart_server(self) -> bool:
        with self._server_lock:
            self.note("stop the server")
            self.server.stop()
            self.pause(0, 1)
            self.server.start()
            self.note("the server is back")
        return True

    def kill_client(self) -> bool:
        with self._server_lock, self.server.client() as client:
            names = {row["id"]: row["name"] for row in client.client_list()}
            ids = [number for number, name in names.items() if name.startswith(PREFIX)]
            if not ids:
                return False
            try:
                victim = self.chooser.choice(ids)
                self.note(f"CLIENT KILL {names[victim]}")
                client.client_kill_filter(_id=victim)
            except redis.ResponseError:
                return False
        return True

    # ---- the server, alive

    def pause_clients(self) -> bool:
        """Have the server answer nobody, by CLIENT PAUSE."""
        with self._server_lock, self.server.client() as client:
            pause_s = self.chooser.uniform(0.1, self.visibility_timeout_s / 4)
            self.note(f"CLIENT PAUSE {pause_s:.1f} s")
            client.client_pause(int(pause_s * 1000), all=True)
            time.sleep(pause_s)
        return True

    def freeze_server(self) -> bool:
        with self._server_lock:
            self.note("freeze the server")
            self.server.freeze()
            self.pause(0.1, self.visibility_timeout_s / 2)
            self.server.thaw()
            self.note("thaw the server")
        return True

    def flush_scripts(self) -> bool:
        with self._server_lock, self.server.client() as client:
            self.note("SCRIPT FLUSH")
            client.script_flush()
        return True

    def fill_memory(self) -> bool:
        """Leave the server no memory. Publishers rest: a publish that is refused after a lost reply may be stored."""
        with self._server_lock:
            self.memory_full = True
            try:
                until = time.monotonic() + IDLE_S
                while any(sender.busy for sender in self.senders):
                    if time.monotonic() > until:
                        return False
                    time.sleep(0.01)
                with self.server.client() as client:
                    self.note("the memory is full")
                    client.config_set("maxmemory", "1mb")
                    self.pause(0.1, 1)
                    client.config_set("maxmemory", "0")
                    self.note("there is memory again")
            finally:
                self.memory_full = False
        return True

    # ---- network

    def cut_off(self) -> bool:
        """Cut a worker off for longer than the visibility timeout."""
        with self.crew.one(self.chooser) as member:
            if member is None:
                return False
            self.note(f"cut off {member.life}")
            with member.silent():
                member.proxy.blackhole()
                self.pause(self.visibility_timeout_s * 1.2, self.visibility_timeout_s * 1.8)
                if self.chooser.random() < 0.5:
                    # What was held back never arrives.
                    member.proxy.reset()
                member.proxy.heal()
            self.note(f"healed {member.life}")
        return True

    def blackhole(self) -> bool:
        return self._weather("blackhole", lambda proxy: proxy.blackhole(), self.visibility_timeout_s / 5)

    def reset(self) -> bool:
        return self._weather("reset", lambda proxy: proxy.reset(), 0)

    def refuse(self) -> bool:
        return self._weather("refuse", lambda proxy: proxy.refuse(), self.visibility_timeout_s / 5)

    def slow(self) -> bool:
        return self._weather("slow", lambda proxy: proxy.slow(50_000), 2)

    def delay(self) -> bool:
        return self._weather("delay", lambda proxy: proxy.delay(0.03), 2)

    def lose_replies(self) -> bool:
        return self._weather("lose_replies", lambda proxy: proxy.lose_replies(), 0.1, reset=True)

    def cut_bytes(self) -> bool:
        return self._weather("cut_bytes", lambda proxy: proxy.cut(), 0.3)

    def _weather(self, what: str, bad: Callable[[Proxy], None], longest_s: float, *, reset: bool = False) -> bool:
        with self.crew.one(self.chooser) as member:
            proxy = self._proxy(member)
            whom = "the publishers" if proxy is self.publishers else member.life
            self.note(f"{what}: {whom}")
            bad(proxy)
            self.pause(0, longest_s)
            if reset:
                proxy.reset()
            proxy.heal()
            self.note(f"end of {what}: {whom}")
        return True

    def _proxy(self, member: Member | None) -> Proxy:
        if member is None or self.chooser.random() < 0.3:
            return self.publishers
        return member.proxy


FAULTS: dict[str, Callable[[Storm], bool]] = {
    name: getattr(Storm, name)
    for name in (
        *("kill_worker", "kill_server", "restart_server", "kill_client", "freeze_worker", "stop_worker"),
        *("pause_clients", "freeze_server", "flush_scripts", "fill_memory"),
        *("cut_off", "blackhole", "reset", "refuse", "slow", "delay", "lose_replies", "cut_bytes"),
    )
}
#: These go on while others strike.
LONG = {"freeze_worker", "cut_off", "stop_worker", "slow", "delay", "blackhole"}
PARTITIONS = ("cut_off", "blackhole", "reset", "refuse", "slow", "delay", "lose_replies", "cut_bytes")
