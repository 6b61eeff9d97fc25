"""The count of calls that one publish and one task pass, as docs/benchmarks.md tells it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_both_paths_are_counted(server):
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.calls", "--functions"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    figures = re.findall(r"^(one \w+): (\d+) calls, (\d+) functions, (\d+) files, (\d+) classes", output, re.MULTILINE)
    assert [name for name, *_ in figures] == ["one publish", "one task"]
    assert all(int(number) > 0 for _, *numbers in figures for number in numbers)
    assert "transport/publishing.py" in output
    assert "consumer/delivery_loop.py" in output
