"""One master with a replica, and three Sentinels, for each file."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.sentinels import Deployment, sentinel_deployment

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with sentinel_deployment() as deployment:
        yield deployment


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
