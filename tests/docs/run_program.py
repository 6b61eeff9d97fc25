"""Runs a Python file as its own program, in its folder: for the fork server, which starts modules. FILE"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(sys.argv[1])
    os.chdir(program.parent)
    sys.path[0] = str(program.parent)
    runpy.run_path(str(program), run_name="__main__")
