"""Fixtures: a clock that a test steps."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock as process_clock
from tests.support.process_clock import ProcessClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ProcessClock:
    """The clock of this process, which stands."""
    stepped = ProcessClock()
    monkeypatch.setattr(process_clock, "now_s", stepped)
    return stepped
