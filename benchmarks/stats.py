"""The few statistics that the report needs."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["median", "percentile", "ratio", "spread"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the values that were measured."""
    if not values:
        raise ValueError("no values to take a percentile of")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be in (0, 100], not {percent}")
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """``ours / theirs``; None where either is missing or theirs is zero."""
    if ours is None or not theirs:
        return None
    return ours / theirs


def spread(values: Sequence[float]) -> float | None:
    """(max - min) / median, so that a reader sees how far to trust a median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else None
