"""A log over the test's database, and events in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redis_plus.event_log.stream import EventLog


@pytest.fixture
def log(broker_url: str) -> Iterator[EventLog]:
    """Read the events of the test's database."""
    with EventLog(broker_url) as opened:
        yield opened
