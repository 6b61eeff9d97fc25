"""A configured app whose broker is not ours: refused, or named in the log."""

import os
import subprocess
import sys

import pytest

from tests.integration.celery.app import SETUP_VARIABLE, URL_VARIABLE


@pytest.mark.parametrize("environment", [{}, {"CELERY_BROKER_URL": "sentinel://:secret@127.0.0.1:1"}])
def test_a_worker_does_not_start_on_sentinel(environment):
    option = [] if environment else ["-b", "sentinel://:secret@127.0.0.1:1"]
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.integration.celery.app", *option, "worker", "-P", "solo"],
        env={**os.environ, SETUP_VARIABLE: "configured", URL_VARIABLE: "redis://127.0.0.1:1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode != 0
    assert "InvalidAddress: the broker URL names 'sentinel'" in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
