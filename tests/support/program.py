"""Runs programs, forked from a process that has imported what they import; as a program itself: CODE ARGUMENTS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from textwrap import dedent
from typing import IO, Any

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
    with tempfile.TemporaryFile("w+") as output:
        return _ran([__name__, code, *arguments], output, output, timeout_s)


def run_script(text: str, *arguments: str) -> Any:
    """Run a program as `run_forked` does, which may not complain; return what it printed as JSON."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        ended = _ran([__name__, WITHOUT_WARNING + dedent(text), *arguments], output, error, 60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def run_python(code: str) -> str:
    """Run a program in an interpreter that has imported nothing, and may not fail; return what it printed."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


#: Newer Pythons warn of forks beside threads.
WITHOUT_WARNING = "import warnings; warnings.filterwarnings('ignore', 'This process', DeprecationWarning)\n"


def _ran(command: list[str], output: IO[str], error: IO[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    process = fork_server().start(command, os.environ, output, error)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    printed = [(file.seek(0), file.read())[1] for file in (output, error)]
    return subprocess.CompletedProcess(command, status, *printed)


if __name__ == "__main__":
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
