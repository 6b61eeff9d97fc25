"""Tells a trend from noise."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tests.chaos.soak.meters import QUANTITIES, Series


def trends(series: Iterable[Series]) -> list[str]:
    """Return a sentence for each series that grows: the last quarter of the run against the second one.

    The first quarter is the start: imports, pools, caches, first collections of garbage. Medians: a sample may meet a peak.
    """
    found = []
    for one in series:
        quantity = QUANTITIES[one.quantity]
        amounts = [amount for _, amount in one.points]
        quarter = len(amounts) // 4
        if not quarter:
            continue
        before, after = median(amounts[quarter : 2 * quarter]), median(amounts[-quarter:])
        if after > before * (1 + quantity.growth) + quantity.least:
            unit = f" {quantity.unit}".rstrip()
            found.append(
                f"{one.quantity} of {one.whose} grows: {before:.1f}{unit} in the second quarter, {after:.1f}{unit} in the last"
            )
    return found
