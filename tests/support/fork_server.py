"""A fork server: starts `python -m MODULE` from a process that has imported Celery, kombu and us already.

The imports take most of the CPU time of a short worker. A child of the fork server is a process like any other: it has its own
session, environment and log, runs the module as `__main__` in its main thread, and ends as the interpreter ends. It differs in
two things: modules are loaded already, and a prefork pool ends without its pauses of 1.5 s (`ShortPauses`). The chaos tests, and
those of ways to start a worker, execute `python -m celery`.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
#: Celery's command line imports its plugins and its prompt, of which a worker needs none.
LEAN_CELERY = ROOT / "tests" / "support" / "lean_celery"
#: What every worker loads. gevent and eventlet have to patch before these load: their workers start without the fork server.
PRELOADED = (
    "celery.app.control",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events",
    "celery.events.state",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    # What commands load.
    "celery_redis_plus.admin.shard_admin",
    "celery_redis_plus.cli.main",
    # What is loaded with the first consumer.
    "celery_redis_plus.broker.publishing.delivery_store",
    "celery_redis_plus.consumer.consumer_session",
    "celery_redis_plus.consumer.delivery_loop",
    "celery_redis_plus.integration.configure",
    "celery_redis_plus.integration.migration",
    "celery_redis_plus.integration.publishing",
    "celery_redis_plus.integration.worker",
    "celery_redis_plus.maintenance.service",
    "celery_redis_plus.transport.qos",
    "celery_redis_plus.transport.transport",
    "kombu.matcher",
    "kombu.pidbox",
)
#: Modules that sleep when a prefork pool ends, whatever has happened: a child for 1 s, then its worker for 0.5 s.
PAUSING = ("billiard.pool", "celery.concurrency.prefork")
LONGEST_PAUSE_S = 0.05


def python_path(env: Mapping[str, str]) -> str:
    """Return the PYTHONPATH of a worker with this environment."""
    return os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(LEAN_CELERY)]))


class ShortPauses:
    """Stands in for the module `time` in a module whose pauses are to be short."""

    def sleep(self, seconds: float) -> None:
        """Sleep, for a moment at most."""
        time.sleep(min(seconds, LONGEST_PAUSE_S))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class ForkedProcess:
    """A child of the fork server, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.status_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it runs still.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._server.wait_for_news(0.1)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # Its end may be noticed just now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The end of the tests: asks the server for processes, and hears how they end."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            # A session of its own: Ctrl-C is for the tests, and they end it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(other.fileno())],
                cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path(os.environ)},
            )  # fmt: skip
        self._lock = threading.RLock()
        self._buffer = b""
        self._ended: dict[int, int] = {}

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], output: IO[Any], error: IO[Any] | None = None
    ) -> ForkedProcess:
        """Start `python -m ARGUMENTS` in a session of its own, with this environment and its outputs in these files, or one."""
        request = json.dumps({"arguments": list(arguments), "env": dict(env)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(request).to_bytes(4)], [output.fileno(), (error or output).fileno()])
            self._socket.sendall(request)
            while (started := self._read()) is None:
                pass
        return ForkedProcess(self, started)

    def status_of(self, pid: int) -> int | None:
        """Return the exit status of a child, None while it runs."""
        self.wait_for_news(0.0)
        return self._ended.get(pid)

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when a child has ended, or after `timeout_s`."""
        with self._lock:
            if select.select([self._socket], [], [], timeout_s)[0]:
                self._read()

    def _read(self) -> int | None:
        """Read what the server says; return the process that it has started, if it has."""
        data = self._socket.recv(4096)
        if not data:
            raise RuntimeError(f"the fork server ended with status {self._process.wait()}")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        started = None
        for line in lines:
            word, pid, status = line.split()
            if word == b"ended":
                self._ended[int(pid)] = int(status)
            else:
                # An earlier process of that id is forgotten.
                self._ended.pop(int(pid), None)
                started = int(pid)
        return started

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)


@cache
def fork_server() -> ForkServer:
    """Return the fork server of this process."""
    return ForkServer()


def end_fork_server() -> None:
    """End the fork server, if there is one; its children go on."""
    if fork_server.cache_info().currsize:
        fork_server().close()
        fork_server.cache_clear()


# ---- the server's end


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns twice: None when the tests have ended, and in each child its request."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    sources: list[socket.socket | int] = [requests, woken]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report(requests)
        if requests not in readable:
            continue
        size, descriptors, _, _ = socket.recv_fds(requests, 4, 2)
        if not size:
            return None
        request: dict[str, Any] = json.loads(requests.recv(int.from_bytes(size), socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[1], 2)
            for descriptor in (*descriptors, woken, wake):
                os.close(descriptor)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(b"started %d 0\n" % pid)


def _report(requests: socket.socket) -> None:
    """Tell the tests which children have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        requests.sendall(b"ended %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def main(descriptor: int) -> None:
    for module in PRELOADED:
        import_module(module)
    for module in PAUSING:
        import_module(module).time = ShortPauses()  # type: ignore[attr-defined]
    gc.freeze()
    with socket.socket(fileno=descriptor) as requests:
        request = serve(requests)
    if request is not None:
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = list(request["arguments"])
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
