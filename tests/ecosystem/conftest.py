"""Programs that other people wrote, started and asked over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.integration.celery.conftest import celery_app, celery_worker, notes
from tests.support.waiting import wait_until

__all__ = ["celery_app", "celery_worker", "notes"]


class Program:
    """A program that serves HTTP on a port of its own."""

    def __init__(self, command: list[str], port: int, log_path: Path, env: dict[str, str]) -> None:
        self.port = port
        self._address = f"http://127.0.0.1:{port}"
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)

    def ask(self, path: str) -> str | None:
        """Return a page; None where there is none."""
        try:
            with urlopen(self._address + path, timeout=20) as reply:
                return reply.read().decode()
        except URLError:
            return None

    def log(self) -> str:
        return self._log_path.read_text()

    def wait_for(self, path: str) -> None:
        """Wait until a page is there."""

        def answers() -> bool:
            assert self._process.poll() is None, self.log()
            return self.ask(path) is not None

        wait_until(answers, 60, self.log, interval_s=0.1)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start `python ARGUMENTS`; `{port}` in an argument is a free port."""
    with ExitStack() as stack:

        def start(*arguments: str, env: dict[str, str] | None = None) -> Program:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command = [sys.executable, *(argument.replace("{port}", str(port)) for argument in arguments)]
            program = Program(command, port, tmp_path / f"program-{port}.log", env or {})
            stack.callback(program.end)
            return program

        yield start
