"""Every Python block of the pages is a complete program; each one runs in a process of its own."""

import subprocess
import sys

import pytest

from tests.docs.blocks import blocks

#: What the pages write for "your server".
ADDRESS = "localhost:6379/0"


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_block_runs(block, broker_url, tmp_path):
    address = broker_url.partition("://")[2]
    program = tmp_path / "block.py"
    # Empty lines before it, so that a traceback names the line of the page.
    program.write_text("\n" * (block.line - 1) + block.code.replace(ADDRESS, address))

    result = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, f"{block}\n{result.stderr}"


def test_pages_have_python_blocks():
    assert blocks("python")
