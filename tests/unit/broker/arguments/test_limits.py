"""Limits as a queue's arguments give them, and as the scripts read them."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.errors import InvalidArgument


def limits(**arguments):
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return Limits.of(QueueArguments.parse("q", arguments=table))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, ""),
        ({"overflow": "block"}, ""),
        ({"message_ttl": 5}, ""),
        ({"max_length": 0}, "0 - - drop-head - -"),
        ({"max_length": 5.0, "overflow": "block"}, "5 - - block - -"),
        ({"max_length_bytes": 10**15, "max_pending": 7}, "- 1000000000000000 7 drop-head - -"),
        ({"max_pending": 7, "throttle": True}, "- - 7 drop-head * -"),
        ({"max_pending": 7, "throttle": 0.25}, "- - 7 drop-head 0.25 -"),
        ({"max_pending": 7, "throttle": False}, "- - 7 drop-head - -"),
    ],
)
def test_limits_have_one_text_and_a_queue_without_any_has_none(arguments, text):
    assert limits(**arguments).encode() == text


def test_the_text_changes_with_the_accepted_types():
    one, other = limits(accept_types=["a.*"]).encode(), limits(accept_types=["b.*"]).encode()
    assert one != other
    assert one.startswith("- - - drop-head - ")


@pytest.mark.parametrize(
    ("patterns", "names", "accepted"),
    [
        ([], ("anything",), True),
        (["a.*"], ("a.b", None, None), True),
        (["a.*"], (None, "a.b", None), True),
        (["a.*"], (None, None, None), False),
        (["a.?"], ("a.bc",), False),
        (["[ab].c"], ("b.c",), True),
        (["A"], ("a",), False),
    ],
)
def test_one_pattern_that_matches_one_name_is_enough(patterns, names, accepted):
    assert Limits(accepts=tuple(patterns)).accept(names) is accepted


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_pending", 0),
        ("max_pending", "5"),
        ("throttle", 0),
        ("throttle", 1.5),
        ("throttle", "yes"),
        ("accept_types", []),
        ("accept_types", "a.*"),
        ("accept_types", ["a", ""]),
        ("accept_types", [1]),
        ("overflow", "wait"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(argument, value):
    given = {argument: value, **({"max_length": 5} if argument == "throttle" else {})}
    with pytest.raises(InvalidArgument, match=f"x-{argument.replace('_', '-')}.*queue 'q'.*allowed"):
        limits(**given)
