"""Runs a program that a test has as text, forked from a process that has imported what it imports. CODE ARGUMENTS"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.support.fork_server import fork_server


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
