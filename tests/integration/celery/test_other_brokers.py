"""A configured app whose broker is not ours: refused, or named in the log."""

import os
import subprocess
import sys

import pytest

from tests.integration.celery.app import SETUP_VARIABLE, URL_VARIABLE


@pytest.mark.sample(1)
@pytest.mark.parametrize("environment", [{}, {"CELERY_BROKER_URL": "sentinel://:secret@127.0.0.1:1"}])
def test_a_worker_on_sentinels_says_that_the_name_of_the_master_is_missing(environment):
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
    assert "the name of the master is missing" in ended.stderr
    assert "secret" not in ended.stdout + ended.stderr
