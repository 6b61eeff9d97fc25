"""A virtual environment with nothing in it but what a page says, and the clone from which it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT

#: The folder of an environment that has everything already: quicker while somebody writes a page.
READY_VARIABLE = "CRP_TEST_ENVIRONMENT"


class FreshEnvironment:
    """A new environment and a copy of this project's files, as `git clone` makes one."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "celery-redis-plus"
        self._ready = os.environ.get(READY_VARIABLE)
        self.bin = Path(self._ready or folder / "venv") / "bin"
        if self._ready is None:
            self._make(folder)
        #: Nothing that says to Python, Celery or pip where this project is.
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "CELERY", "CRP_", "VIRTUAL_ENV", "DJANGO"))
        }
        self.variables |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.variables |= {"PIP_QUIET": "1", "PYTHONUNBUFFERED": "1"}

    def _make(self, folder: Path) -> None:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clone / name)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)

    def pip(self, line: str) -> None:
        """Run a line that begins with `pip`, in the clone."""
        if self._ready is not None:
            return
        # One that is asked whether to go on says yes.
        ran = subprocess.run(
            ["bash", "-c", line], cwd=self.clone, env=self.variables, input="y\n", capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
