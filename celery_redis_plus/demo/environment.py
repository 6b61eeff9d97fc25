"""The environment of a run of the demo: the server, the app, the workers, their records; all of it is removed at the end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

from redis.exceptions import RedisError

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.connection.address import url_options
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.demo import records
from celery_redis_plus.demo.cleanup_process import CleanupProcess
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.testing import EmbeddedServer, pointed_at
from celery_redis_plus.transport.url_aliases import our_url

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.demo.console import Console
    from celery_redis_plus.demo.records import Record

WORKER_START_S = 30
#: Of a worker whose tasks take milliseconds.
WORKER_STOP_S = 10
POLL_S = 0.05
#: Of a worker's log, shown when something goes wrong.
LOG_LINES = 60


class DemoFailed(CeleryRedisPlusError):  # noqa: N818 - as in errors.py
    """The demo could not go on; the message says why, and the worker's log follows."""


class Environment:
    """Starts everything on entering the context, and removes it on leaving.

    Args:
        url: a server to use; None starts one.
        console: shows how far the work is.
        verbose: let the workers print their logs.
        app: the module with the app.
        log_level: of the workers.
    """

    def __init__(
        self,
        url: str | None,
        console: Console,
        *,
        verbose: bool = False,
        app: str = "celery_redis_plus.demo.app",
        log_level: str = "INFO",
    ) -> None:
        self.embedded = url is None
        self.prefix = f"crp-demo-{secrets.token_hex(4)}:"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._url = url
        self._console = console
        self._verbose = verbose
        self._module = app
        self._log_level = log_level
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        if options := url_options(self._url or ""):
            # They could take the keys out of the demo's prefix.
            raise DemoFailed(f"--url takes no transport options; leave out {', '.join(sorted(options))}")
        # Variables of the user's shell that would change the demo: they go before the settings of an app.
        for name in [name for name in os.environ if name.startswith("CELERY_")]:
            del os.environ[name]
        with ExitStack() as exits:
            self._cleanup = exits.enter_context(CleanupProcess())
            self.folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="celery-redis-plus-demo-")))
            self._cleanup.note("folder", self.folder)
            url = our_url(self._url) if self._url else self._embedded_server(exits)
            self.broker = f"{url}{'&' if '?' in url else '?'}global_keyprefix={self.prefix}"
            # Our own error, which says what to do, if the server cannot be used.
            self.admin = exits.enter_context(BrokerAdmin(self.broker))
            self.address = self.admin.commands.connector.address.display()
            exits.callback(self._remove_keys)
            self.app: Celery = exits.enter_context(pointed_at(import_module(self._module).app, self.broker, "disabled://"))
            exits.callback(self._kill_workers)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exits.close()

    # ---- workers: each in a process group of its own, so that it can be killed with all its children and nothing else

    def start_worker(self, name: str, queues: Sequence[str]) -> None:
        """Start `celery worker`, and return when it consumes.

        Raises:
            DemoFailed: it ended, or was not ready in time.
        """
        with self._log(name).open("wb") as log:
            worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", self._module, "--no-color", "worker"),
                    *("--pool", "prefork", "--concurrency", "1", "--hostname", f"{name}@demo", "--loglevel", self._log_level),
                    *("--queues", ",".join(queues)),
                ],
                # A user's folder could hold a `celery.py`. A pool that is killed leaves its temporary folder.
                cwd=self.folder,
                env={**os.environ, "CELERY_BROKER_URL": self.broker, "TMPDIR": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=None if self._verbose else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._cleanup.note("group", worker.pid)
        self.workers[name] = worker
        inspect = self.app.control.inspect([f"{name}@demo"], timeout=0.5, limit=1)
        if not self.wait(inspect.ping, WORKER_START_S):
            raise DemoFailed(f"worker {name!r} was not ready within {WORKER_START_S} s")

    def kill_if_busy(self, name: str, is_busy: Callable[[], object]) -> bool:
        """Kill a worker that is at work; it is frozen for the look, so that it is in the middle of a task for sure."""
        os.killpg(self.workers[name].pid, signal.SIGSTOP)
        if is_busy():
            self._kill(name)
            return True
        os.killpg(self.workers[name].pid, signal.SIGCONT)
        return False

    def stop_workers(self) -> dict[str, int | None]:
        """Shut all workers down warmly; return their exit statuses, None for one that had to be killed."""
        statuses: dict[str, int | None] = dict.fromkeys(self.workers)
        for name, worker in list(self.workers.items()):
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                statuses[name] = worker.wait(WORKER_STOP_S)
            self._kill(name)
        return statuses

    def logs(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the ends of the logs of the workers that have not been stopped."""
        for name in self.workers:
            yield name, self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]

    # ---- waiting and looking

    def wait(self, condition: Callable[[], object], timeout_s: float, poll_s: float = POLL_S) -> bool:
        """Wait until `condition` is true; return False where it was not in time.

        Raises:
            DemoFailed: a worker has ended meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            for name, worker in self.workers.items():
                if worker.poll() is not None:
                    raise DemoFailed(f"worker {name!r} ended unexpectedly")
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_s)
        return True

    def wait_for_records(self, kind: str, number: int, timeout_s: float, label: str) -> list[Record]:
        """Wait for so many records, but not for ever; return what was recorded until then."""
        with self._console.progress(label, number) as progress:

            def enough() -> bool:
                done = self.count(kind)
                progress(min(done, number))
                return done >= number

            self.wait(enough, timeout_s)
        return self.records(kind)

    def records(self, kind: str, last: int = 0) -> list[Record]:
        """Return the workers' records of one kind in the order in which they were written: the `last` ones; 0 is all of them."""
        return records.read(self.folder, kind, last)

    def count(self, kind: str) -> int:
        """Return how many records of one kind there are."""
        return records.count(self.folder, kind)

    def clock_offset_s(self) -> float:
        """Return how far the server's clock is ahead of ours, in seconds; half a round trip is unsure."""
        before = time.time()
        return server_ms(self.admin.commands) / 1000 - (before + time.time()) / 2

    # ---- building and removing

    def _embedded_server(self, exits: ExitStack) -> str:
        server = EmbeddedServer().start()
        self._cleanup.note("group", server.pid)
        self._cleanup.note("folder", server.directory)
        exits.callback(self._cleanup.note, "ended", server.pid)
        exits.callback(server.close)
        return server.url()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self._cleanup.note("ended", worker.pid)

    def _kill_workers(self) -> None:
        for name in list(self.workers):
            self._kill(name)

    def _remove_keys(self) -> None:
        if not self.embedded:
            with suppress(RedisError):
                for removal in self.admin.removals():
                    removal.delete()
