"""Fixtures: delivery loops on a broker in memory, and kombu's event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.hubs import current_hub
from tests.unit.consumer.in_memory import Consuming

if TYPE_CHECKING:
    from kombu.asynchronous import Hub


@pytest.fixture
def consuming() -> Callable[..., Consuming]:
    """Make a delivery loop: `consuming(min_fetch_interval=1)`."""
    return Consuming


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An event loop."""
    with current_hub() as loop:
        # Bounds the sleep of a loop that nothing wakes.
        loop.call_repeatedly(0.01, lambda: None)
        yield loop
