"""What kombu's transport options say of an installation."""

from __future__ import annotations

import pytest

from celery_redis_plus.errors import OptionError
from celery_redis_plus.migration.kombu_broker import Binding, KombuBroker, KombuUnacked


def broker(**options):
    return KombuBroker.of_options(None, "", options)


@pytest.mark.parametrize("steps", [range(5), [0, 1, 2, 3, 4], (0, 1, 2, 3, 4), {0, 1, 2, 3, 4}])
def test_priority_steps_are_any_iterable_of_whole_numbers(steps):
    assert [broker(priority_steps=steps).step_of(priority) for priority in (0, 3, 4, 9)] == [0, 3, 4, 4]


@pytest.mark.parametrize("options", [{}, {"priority_steps": None}])
def test_priority_steps_that_are_not_set_are_kombus(options):
    assert [broker(**options).step_of(priority) for priority in (0, 3, 4, 9)] == [0, 3, 3, 9]


@pytest.mark.parametrize("steps", ["0,3", 3, [0, "3"], [True]])
def test_other_priority_steps_are_refused(steps):
    with pytest.raises(OptionError, match="allowed are whole numbers"):
        broker(priority_steps=steps)


@pytest.mark.parametrize(
    "text", [b'[{}, "", 5]', b'[{}, "", ["q"]]', b'[{}, 5, "q"]', b'[{}, {"a": 1}, "q"]', b"[1, 2]", b"7", b"{"]
)
def test_an_unacked_message_that_no_kombu_has_written_belongs_to_no_queue(text):
    assert broker().queues_of_unacked(KombuUnacked(b"tag", 1.0, text)) == []


def test_a_pattern_that_is_no_regular_expression_takes_nothing():
    assert not Binding("topics", "", "[", "q").takes("a.b")
