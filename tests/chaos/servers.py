"""Servers whose disk can be full and whose clock can be set."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path

from celery_redis_plus.testing.server import EmbeddedServer
from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.servers import server_program


class SetClock:
    """The wall clock of processes that were started with `environment`: it differs from the machine's by what `set` says.

    They notice a change within some seconds. The monotonic clocks stay the machine's.
    """

    def __init__(self, path: Path, library: Path, *, of_server: bool = False) -> None:
        self._path, self._of_server = path, of_server
        self._path.write_text("+0\n")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }

    def set(self, offset_s: float) -> None:
        # In one step: the file is read at any moment.
        new = self._path.with_suffix(".new")
        new.write_text(f"{offset_s:+}\n")
        if self._of_server:
            note(records.CLOCK_STEPPED, detail={"offset_s": offset_s})
        new.replace(self._path)


def set_clock(path: Path, *, of_server: bool = False) -> SetClock | None:
    """Return a clock that is set by the file `path`; None where libfaketime is not installed."""
    spec = find_spec("libfaketime")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    return SetClock(path, library, of_server=of_server) if library.exists() else None


def stormy_server(folder: Path, clock: SetClock | None) -> EmbeddedServer:
    """Return a server that has every write on disk before it confirms it, not yet started."""
    program = folder / "server"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in (clock.environment if clock else {}).items()]
    # A write beyond RLIMIT_FSIZE is an error, not the end by SIGXFSZ.
    lines = ["#!/bin/sh", "trap '' XFSZ", *exports, f'exec {shlex.quote(os.fspath(server_program()))} "$@"']
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return EmbeddedServer(config={"appendonly": "yes", "appendfsync": "always"}, binary=program)
