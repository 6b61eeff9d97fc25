"""A stranger's project that tests itself with `celery_redis_plus.testing` and pytest."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "sample_project"


def test_sample_project_passes(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # It has no plugins beside pytest.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base"), str(PROJECT)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # No configuration of ours is found from there: the project brings its own.
        cwd=PROJECT,
        env=environment,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "7 passed" in run.stdout
