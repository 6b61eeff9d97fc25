"""Every Python block of the pages is a complete program; each one runs in a process of its own.

Those that import Celery or kombu are forked from a process that has imported both, but for the first block of README; with
`--weekly` each is executed as a user does it.
"""

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import blocks
from tests.docs.run_program import run_forked

#: What the pages write for "your server".
ADDRESS = "localhost:6379/0"
FORKED = re.compile(r"^(from|import) (celery|kombu|celery_redis_plus)\b", re.MULTILINE)
README = next(block for block in blocks("python") if block.page.name == "README.md")


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_block_runs(block, broker_url, tmp_path, weekly):
    address = broker_url.partition("://")[2]
    program = tmp_path / "block.py"
    # Empty lines before it, so that a traceback names the line of the page.
    program.write_text("\n" * (block.line - 1) + block.code.replace(ADDRESS, address))

    if FORKED.search(block.code) and block != README and not weekly:
        status, printed = run_forked(program)
    else:
        ended = subprocess.run(
            [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        status, printed = ended.returncode, ended.stdout + ended.stderr

    assert status == 0, f"{block}\n{printed}"


def test_pages_have_python_blocks():
    assert blocks("python")
