"""The core of the integration tests on the servers that we promise to work with, each from its own image (`tox -e servers`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = (
    *("redis:7.0", "redis:7.2", "redis:7.4", "redis:8"),
    *("valkey/valkey:7.2", "valkey/valkey:8", "valkey/valkey:9"),
)
#: What differs between servers: scripts, blocking commands, streams, the life of keys.
CORE = ("broker", "scripts", "consumers", "fanout", "flow_control", "connection", "transport", "celery/test_ways_to_use.py")
PORT = 6379
TIMEOUT_S = 900


@pytest.fixture(scope="session")
def docker() -> None:
    """Skip where there is no Docker; `CRP_REQUIRE_DOCKER=1` fails there."""
    testcontainers = pytest.importorskip("testcontainers.core.docker_client", reason="testcontainers is not installed")
    try:
        testcontainers.DockerClient().client.ping()
    except Exception as error:
        if os.environ.get("CRP_REQUIRE_DOCKER"):
            raise
        pytest.skip(f"no Docker here: {error}")


@pytest.fixture(params=IMAGES)
def url(request: pytest.FixtureRequest, docker: None) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    with DockerContainer(request.param).with_exposed_ports(PORT) as container:
        wait_for_logs(container, "Ready to accept connections", timeout=60)
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(PORT)}/4"


@pytest.mark.timeout(TIMEOUT_S + 120)
def test_core_integration_tests_pass(url):
    folders = [f"tests/integration/{name}" for name in CORE]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--min-server-tests", "200", *folders],
        cwd=ROOT,
        env={**os.environ, "CRP_TEST_URL": url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
