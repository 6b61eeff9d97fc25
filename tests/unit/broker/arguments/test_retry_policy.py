from __future__ import annotations

import pytest

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.arguments.retry_policy import RetryPolicies, RetryPolicy
from celery_redis_plus.errors import InvalidArgument


def delays(text, attempts=6):
    policy = RetryPolicy.parse(text)
    return [policy.delay_ms(attempt) for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", [None] * 6),
        ("constant first=500", [500] * 6),
        ("linear first=100", [100, 200, 300, 400, 500, 600]),
        ("linear first=100 step=50 max=220", [100, 150, 200, 220, 220, 220]),
        ("exponential first=100", [100, 200, 400, 800, 1600, 3200]),
        ("exponential first=100 multiplier=3 max=1000", [100, 300, 900, 1000, 1000, 1000]),
        ("fibonacci first=100", [100, 100, 200, 300, 500, 800]),
        ("list delays=5,0,70", [5, 0, 70, None, None, None]),
        ("linear first=100 total=600", [100, 200, 300, None, None, None]),
        ("constant first=7 limit=2", [7, 7, None, None, None, None]),
        ("constant first=7 limit=0", [None] * 6),
    ],
)
def test_each_kind_has_its_delays(text, expected):
    assert delays(text) == expected


def test_jitter_takes_off_a_share_that_depends_on_message_and_attempt_only():
    policy = RetryPolicy("exponential", first=1000, jitter=0.5)
    seen = [policy.delay_ms(1, f"message {number}") for number in range(200)]
    assert all(500 <= delay <= 1000 for delay in seen)
    assert len(set(seen)) > 100
    assert seen == [policy.delay_ms(1, f"message {number}") for number in range(200)]


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "constant first=5",
        "exponential first=1000 multiplier=1.5 max=60000 jitter=0.2 total=100000 limit=8",
        "list delays=1,2",
    ],
)
def test_a_policy_reads_its_own_text(text):
    assert str(RetryPolicy.parse(text)) == text
    assert RetryPolicy.parse(str(RetryPolicy.parse(text))) == RetryPolicy.parse(text)


@pytest.mark.parametrize("text", [
    "", "often", "constant", "linear first=0", "list", "linear first=1 jitter=2", "constant first=1 x=2",
    "constant first=1 limit=-1", "constant first=1; none", "shop.Gone: none",
    "Gone: none; Gone: constant first=1", ": none", "Gone: often", "none;",
])  # fmt: skip
def test_what_is_no_policy_is_refused_with_the_queue_and_the_value(text):
    with pytest.raises(InvalidArgument, match=r"'x-retry-policy' of queue 'q'.*exponential first=1000"):
        QueueArguments.parse("q", arguments={"x-retry-policy": text})


def test_rabbitmqs_delayed_retry_is_the_linear_policy_and_both_together_are_refused():
    arguments = QueueArguments.parse("q", arguments={"x-delayed-retry-min": 100, "x-delayed-retry-max": 250})
    assert [arguments.retry_policies.others.delay_ms(attempt) for attempt in (1, 2, 3)] == [100, 200, 250]
    with pytest.raises(InvalidArgument, match="one of the two"):
        QueueArguments.parse("q", arguments={"x-delayed-retry-min": 100, "x-retry-policy": "none"})


def test_policies_by_exception_read_their_own_text():
    text = "exponential first=1000 limit=8; ValueError: none; ConnectionError: list delays=1,2"
    policies = RetryPolicies.parse("exponential first=1s limit=8 ;ValueError:none; ConnectionError: list delays=1,2")
    assert str(policies) == text
    assert RetryPolicies.parse(text) == policies
    assert RetryPolicies.parse("Gone: none").others is None
