"""A maintenance task gives the thread back after its slice."""

from __future__ import annotations

import pytest

from celery_redis_plus.maintenance.maintenance_task import SLICE_S, Slice


@pytest.mark.parametrize(
    ("after_s", "over"), [(0.0, False), (SLICE_S * 0.99, False), (SLICE_S, True), pytest.param(3600.0, True, id="suspended")]
)
def test_a_slice_is_over_after_its_time(clock, after_s, over):
    begun = Slice()
    clock.advance(after_s)
    assert begun.over is over


def test_each_slice_begins_anew(clock):
    first = Slice()
    clock.advance(SLICE_S)
    assert first.over
    assert not Slice().over
