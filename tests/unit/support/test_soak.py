"""The soak tells a trend from noise, and draws what it has measured."""

from xml.etree import ElementTree as ET

import pytest

from tests.chaos.soak.meters import DESCRIPTORS, KEYS, MEMORY, Series
from tests.chaos.soak.plot import svg
from tests.chaos.soak.trends import trends


def series(quantity, amount):
    """400 samples of `amount(part of the run)`."""
    return Series(quantity, "worker", [(2.0 * number, amount(number / 400)) for number in range(400)])


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        (MEMORY, lambda part: 60 + 40 * min(part, 0.2)),
        (MEMORY, lambda part: 100 if part > 0.99 else 60),
        (DESCRIPTORS, lambda part: 30 + int(part * 1000) % 3),
        (KEYS, lambda part: 500 + 200 * (int(part * 100) % 2)),
    ],
    ids=["it grows at the start only", "a peak", "a few more or less", "up and down"],
)
def test_what_comes_to_rest_is_no_trend(quantity, amount):
    assert trends([series(quantity, amount)]) == []


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        (MEMORY, lambda part: 60 + 20 * part),
        (DESCRIPTORS, lambda part: 30 + int(20 * part)),
        (KEYS, lambda part: 500 * (1 + part)),
    ],
    ids=["memory", "descriptors", "keys"],
)
def test_what_grows_all_the_time_is_a_trend(quantity, amount):
    (found,) = trends([series(quantity, amount)])
    assert found.startswith(f"{quantity} of worker grows: ")


def test_a_plot_has_a_line_for_each_series():
    drawn = ET.fromstring(svg([series(MEMORY, lambda _: 60), series(KEYS, lambda part: part)], "a < b"))
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert all(50 < len(line.get("points").split()) <= 500 for line in lines)
