"""Runs programs, forked from a process that has imported what they import; as a program itself: CODE ARGUMENTS."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO

from tests.support.fork_server import ForkedProcess, fork_server


class Program:
    """A forked program: what `subprocess.Popen` gives of one with pipes."""

    def __init__(self, process: ForkedProcess, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.pid = process.pid
        self.poll, self.wait = process.poll, process.wait
        self.send_signal, self.terminate, self.kill = process.send_signal, process.terminate, process.kill


@contextmanager
def forked(*arguments: str, env: Mapping[str, str] = os.environ) -> Iterator[Program]:
    """Run `python -m ARGUMENTS` until the end of the block, as `subprocess.Popen` does, but for its imports."""
    with ExitStack() as stack:
        read, written = zip(*(os.pipe() for _ in range(2)), strict=True)
        ends = [stack.enter_context(os.fdopen(end)) for end in read]
        with os.fdopen(written[0], "w") as output, os.fdopen(written[1], "w") as error:
            process = fork_server().start(arguments, env, output, error)
        yield Program(process, *ends)
        process.wait(60)


def run_forked(code: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c CODE ARGUMENTS` does, but for its imports; `stdout` has both outputs.

    Raises:
        subprocess.TimeoutExpired: it runs still, and is killed.
    """
    command = [__name__, code, *arguments]
    with tempfile.TemporaryFile("w+") as output:
        process = fork_server().start(command, os.environ, output)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        return subprocess.CompletedProcess(command, status, stdout=output.read())


if __name__ == "__main__":
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
