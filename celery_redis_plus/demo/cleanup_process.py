"""Cleans up after the demo, even when it is killed with SIGKILL.

`CleanupProcess` starts this file as a separate process, which reads from a pipe what to end. The pipe closes when the demo
ends in any way; then the listed processes are killed, and the listed folders are removed. The process runs this
file alone, without the package, so it is small and starts at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Self


class CleanupProcess:
    """The demo's side: what to end when the demo is gone. A context manager."""

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C in a terminal, or a killed process group, must not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The cleanup process's own id."""
        return self._process.pid

    def note(self, word: str, what: object) -> None:
        """Tell it what to end when the demo is gone.

        Args:
            word: `group` (kill this process group), `ended` (the group has ended; its number may soon be somebody else's), or
                `folder` (remove this one).
            what: the group's number, or the folder.
        """
        # A cleanup process that was killed is no reason to fail.
        with suppress(OSError):
            print(word, what, file=self._process.stdin, flush=True)


def main(lines: Iterable[str]) -> None:
    """Keep the list that `lines` describe; at their end, kill and remove what is on it."""
    groups: set[int] = set()
    folders: list[str] = []
    for line in lines:
        word, _, value = line.rstrip("\n").partition(" ")
        if word == "group":
            groups.add(int(value))
        elif word == "ended":
            groups.discard(int(value))
        elif word == "folder":
            folders.append(value)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.stdin)
