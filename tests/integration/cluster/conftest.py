"""A cluster of three primaries, each with a replica, for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clusters import RunningCluster, running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def running() -> Iterator[RunningCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RunningCluster) -> RunningCluster:
    """The cluster, empty; a test before may have left it without one of its nodes."""
    running.flush()
    return running
