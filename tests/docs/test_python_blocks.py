"""Every Python block of the pages is a complete program; each one runs in a process of its own.

Those that import Celery are forked from a process that has imported it; with `--weekly` each is executed as a user does it.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import blocks
from tests.support.fork_server import fork_server

#: What the pages write for "your server".
ADDRESS = "localhost:6379/0"
IMPORTS_CELERY = re.compile(r"^(from|import) celery\b", re.MULTILINE)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_block_runs(block, broker_url, tmp_path, weekly):
    address = broker_url.partition("://")[2]
    program = tmp_path / "block.py"
    # Empty lines before it, so that a traceback names the line of the page.
    program.write_text("\n" * (block.line - 1) + block.code.replace(ADDRESS, address))

    output = tmp_path / "block.output"
    with output.open("wb") as file:
        if IMPORTS_CELERY.search(block.code) and not weekly:
            status = fork_server().start(["tests.docs.run_program", str(program)], os.environ, file).wait(60)
        else:
            command = [sys.executable, str(program)]
            status = subprocess.run(command, cwd=tmp_path, stdout=file, stderr=file, timeout=60, check=False).returncode

    assert status == 0, f"{block}\n{output.read_text()}"


def test_pages_have_python_blocks():
    assert blocks("python")
