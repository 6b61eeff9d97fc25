"""Runs a Python file as its own program, in its folder: for the fork server, which starts modules. FILE"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.support.fork_server import fork_server


def run_forked(program: Path, timeout_s: float = 60) -> tuple[int, str]:
    """Run a file in a process that is forked from one that has imported Celery; return its status, and what it printed."""
    output = program.with_suffix(".output")
    with output.open("wb") as file:
        status = fork_server().start([__name__, str(program)], os.environ, file).wait(timeout_s)
    return status, output.read_text()


if __name__ == "__main__":
    program = Path(sys.argv[1])
    os.chdir(program.parent)
    sys.path[0] = str(program.parent)
    runpy.run_path(str(program), run_name="__main__")
