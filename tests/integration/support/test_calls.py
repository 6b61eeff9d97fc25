"""The count of calls that a publish and a task pass, as docs/benchmark-method.md tells it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Path -> the most (calls, files, classes) that a reader of the code follows.
LIMITS = {"one publish": (21, 8, 5), "one task": (97, 21, 15), "one buffered task": (47, 17, 12)}


def test_the_paths_stay_short(server):
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.calls", "--functions"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    figures = re.findall(r"^(one [\w ]+): (\d+) calls, (\d+) functions, (\d+) files, (\d+) classes", output, re.MULTILINE)
    assert [name for name, *_ in figures] == list(LIMITS)
    for name, calls, _, files, classes in figures:
        lengths = (int(calls), int(files), int(classes))
        assert all(0 < length <= limit for length, limit in zip(lengths, LIMITS[name], strict=True)), output
    assert "transport/publishing.py" in output
    assert "transport/qos.py" in output
