"""Priorities: what is accepted, and which comes first."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.arguments.priority import RANKS, check_priority
from celery_redis_plus.errors import InvalidPriority, OptionError
from celery_redis_plus.options import Options


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (None, 0),
        (0, 0),
        (9, 9),
        (255, 255),
        (5.0, 5),
        ("5", 5),
        (" 255 ", 255),
        ("007", 7),
        (-0.0, 0),
        ("-0", 0),
    ],
)
def test_accepted_priority(value, priority):
    result = check_priority(value)
    assert result == priority
    assert type(result) is int


@pytest.mark.parametrize("value", [-1, 256, "256", "-1", 300.0, 10**400, 1e300])
def test_priority_out_of_range_is_refused(value):
    with pytest.raises(InvalidPriority, match=r"out of range; allowed are whole numbers from 0 to 255"):
        check_priority(value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        "high",
        "",
        "5.5",
        "٣",
        "1e2",
        5.5,
        float("nan"),
        float("inf"),
        [],
        b"5",
        object(),
        "9" * 5000,
    ],
)
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InvalidPriority, match=r"no whole number; allowed are whole numbers from 0 to 255") as caught:
        check_priority(value)
    assert str(caught.value).startswith(f"priority {repr(value)[:100]}")


def test_queue_caps_the_priority_as_rabbitmq_does():
    assert check_priority(200, 10) == 10
    assert check_priority(10, 10) == 10
    assert check_priority("3", 10) == 3
    assert check_priority(5, 0) == 0
    assert check_priority(None, 10) == 0


def test_priority_over_255_is_refused_even_where_a_cap_would_hide_it():
    with pytest.raises(InvalidPriority):
        check_priority(300, 10)


def test_lowest_rank_is_taken_first():
    high, low = RANKS["high-first"], RANKS["low-first"]
    assert (high[255], high[0]) == (0, 255)
    assert (low[0], low[255]) == (0, 255)
    assert high[9] < high[3]
    assert low[3] < low[9]


def test_the_option_knows_the_orders_that_have_ranks():
    for order in RANKS:
        assert Options(priority_order=order).priority_order == order
    with pytest.raises(OptionError, match=r"'random'.*'high-first' or 'low-first'"):
        Options.from_mapping({"priority_order": "random"})
