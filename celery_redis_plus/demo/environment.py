"""The environment of a run of the demo: the server, the app, the workers, their records; all of it is removed at the end."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from redis.exceptions import RedisError

from celery_redis_plus.connection.address import url_options
from celery_redis_plus.demo.app import BROKER_VARIABLE, PREFIX_VARIABLE, make_app
from celery_redis_plus.demo.cleanup_process import CleanupProcess
from celery_redis_plus.demo.task_log import TaskLog
from celery_redis_plus.demo.worker import WorkerProcess
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.integration.broker_urls import our_url
from celery_redis_plus.maintenance.process_services import services
from celery_redis_plus.testing.server import EmbeddedServer

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.broker.queues.queues import Sizes
    from celery_redis_plus.demo.console import Console

#: Variables of the user's shell that would change the demo: CELERY_BROKER_URL overrides an app's own broker.
FOREIGN = ("CELERY_", "CRP_DEMO_")

WORKER_START_S = 30
#: Of a worker whose tasks take milliseconds.
WORKER_STOP_S = 10
POLL_S = 0.05


class DemoFailed(CeleryRedisPlusError):  # noqa: N818 - as in errors.py
    """The demo could not go on; the message says why, and the worker's log follows."""


@dataclass(frozen=True)
class DemoApps:
    """The apps that a run uses.

    Attributes:
        make_app: returns the app for a broker and a prefix of keys.
        worker_app: the module with the workers' app.
        log_level: of the workers.
    """

    make_app: Callable[[str, str], Celery] = make_app
    worker_app: str = "celery_redis_plus.demo.worker_app"
    log_level: str = "INFO"


class Environment:
    """Starts everything on entering the context, and removes it on leaving.

    Args:
        url: a server to use; None starts one.
        console: where the workers' logs are shown if `verbose`.
        apps: the app, and the workers'.
    """

    def __init__(self, url: str | None, console: Console, *, verbose: bool = False, apps: DemoApps | None = None) -> None:
        self.embedded = url is None
        self._apps = apps or DemoApps()
        self.workers: dict[str, WorkerProcess] = {}
        self.prefix = f"crp-demo-{secrets.token_hex(4)}:"
        self._url = url
        self._console = console
        self._verbose = verbose
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        if options := url_options(self._url or ""):
            # They could take the keys out of the demo's prefix.
            raise DemoFailed(f"--url takes no transport options; leave out {', '.join(sorted(options))}")
        with ExitStack() as exits:
            for name in [name for name in os.environ if name.startswith(FOREIGN)]:
                del os.environ[name]
            self._cleanup_process = exits.enter_context(CleanupProcess())
            self.folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="celery-redis-plus-demo-")))
            self._cleanup_process.note("folder", self.folder)
            self.broker = our_url(self._url) if self._url else self._embedded_server(exits)
            # Before the server goes: they would report that it is away.
            exits.callback(_stop_services)
            self.task_log = TaskLog(self.broker, self.prefix)
            exits.callback(self.task_log.close)
            # Our own error, which says what to do, if the server cannot be used.
            self.clock_offset_s = self.task_log.clock_offset_s()
            exits.callback(self._remove_keys)
            self.app = self._apps.make_app(self.broker, self.prefix)
            exits.callback(self.app.close)
            exits.callback(self._kill_workers)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exits.close()

    # ---- workers

    def start_worker(self, name: str, queues: Sequence[str]) -> WorkerProcess:
        """Start a worker, and return when it consumes.

        Raises:
            DemoFailed: it ended, or was not ready in time.
        """
        worker = WorkerProcess(
            name,
            app=self._apps.worker_app,
            log_level=self._apps.log_level,
            queues=queues,
            folder=self.folder,
            environment={
                **os.environ,
                BROKER_VARIABLE: self.broker,
                PREFIX_VARIABLE: self.prefix,
                # A pool that is killed leaves its temporary folder.
                "TMPDIR": str(self.folder),
            },
            on_line=self._console.log if self._verbose else _ignore,
        )
        self._cleanup_process.note("group", worker.group)
        self.workers[name] = worker
        if not self.wait(lambda: any(record["worker"] == name for record in self.task_log.read("ready")), WORKER_START_S):
            raise DemoFailed(f"worker {name!r} was not ready within {WORKER_START_S} s")
        return worker

    def kill_worker(self, name: str) -> None:
        """Kill a worker with SIGKILL; it is not missed from then on."""
        worker = self.workers.pop(name)
        worker.kill()
        self._cleanup_process.note("ended", worker.group)

    def kill_if_busy(self, name: str, is_busy: Callable[[], object]) -> bool:
        """Kill a worker that is at work; it is frozen for the look, so that it is in the middle of a task for sure."""
        worker = self.workers[name]
        worker.freeze()
        if is_busy():
            self.kill_worker(name)
            return True
        worker.thaw()
        return False

    def stop_workers(self) -> dict[str, int | None]:
        """Shut all workers down warmly; return their exit statuses, None for one that had to be killed."""
        statuses = {}
        for name, worker in list(self.workers.items()):
            statuses[name] = worker.stop(WORKER_STOP_S)
            self._cleanup_process.note("ended", worker.group)
            del self.workers[name]
        return statuses

    def logs(self) -> Mapping[str, Sequence[str]]:
        """Return the ends of the logs of the workers that have not been stopped."""
        return {name: tuple(worker.log) for name, worker in self.workers.items()}

    # ---- waiting and looking

    def wait(self, condition: Callable[[], object], timeout_s: float, poll_s: float = POLL_S) -> bool:
        """Wait until `condition` is true; return False where it was not in time.

        Raises:
            DemoFailed: a worker has ended meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            for name, worker in self.workers.items():
                if not worker.running:
                    raise DemoFailed(f"worker {name!r} ended unexpectedly")
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_s)
        return True

    def wait_for_records(self, kind: str, number: int, timeout_s: float, label: str) -> None:
        """Wait for so many records, but not for ever: the expectations are checked against what was recorded until then."""
        with self._console.progress(label, number) as progress:

            def enough() -> bool:
                count = self.task_log.count(kind)
                progress(min(count, number))
                return count >= number

            self.wait(enough, timeout_s)

    def sizes(self, queue: str) -> Sizes:
        """Return how many messages a queue has: ready, delayed, unacked."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            sizes: Sizes = channel.queue_sizes(queue)
            return sizes

    # ---- building and removing

    def _embedded_server(self, exits: ExitStack) -> str:
        server = EmbeddedServer().start()
        self._cleanup_process.note("group", server.pid)
        self._cleanup_process.note("folder", server.directory)
        exits.callback(self._cleanup_process.note, "ended", server.pid)
        exits.callback(server.close)
        return server.url()

    def _kill_workers(self) -> None:
        for name in list(self.workers):
            self.kill_worker(name)

    def _remove_keys(self) -> None:
        if not self.embedded:
            with suppress(RedisError):
                self.task_log.remove_keys()


def _stop_services() -> None:
    for service in services():
        service.stop()


def _ignore(source: str, line: str) -> None:
    """Show nothing."""
