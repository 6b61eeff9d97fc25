"""Fixtures: delivery loops on a broker in memory, and kombu's event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kombu.asynchronous import Hub, set_event_loop

from tests.unit.consumer.in_memory import Consuming


@pytest.fixture
def consuming() -> Callable[..., Consuming]:
    """Make a delivery loop: `consuming(min_fetch_interval=1)`."""
    return Consuming


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An event loop."""
    loop = Hub()
    set_event_loop(loop)
    # Bounds the sleep of a loop that nothing wakes.
    loop.call_repeatedly(0.01, lambda: None)
    yield loop
    loop.close()
    set_event_loop(None)
