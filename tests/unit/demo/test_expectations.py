import pytest

from celery_redis_plus.demo.expectations import Expectation, Outcome, exit_status

TRUE = Expectation.equal("answers", 2, 2)
FALSE = Expectation.equal("answers", 1, 2)


@pytest.mark.parametrize(
    ("expectation", "holds", "text"),
    [
        (Expectation.equal("tasks", 2000, 2000), True, "tasks: 2,000 (must be 2,000)"),
        (Expectation.equal("tasks", 2001, 2000), False, "tasks: 2,001 (must be 2,000)"),
        (Expectation.none("lost", []), True, "lost: 0 (must be 0)"),
        (Expectation.none("lost", [3]), False, "lost: 1 (3) (must be 0)"),
        (Expectation.none("lost", range(12)), False, "lost: 12 (0, 1, 10, 11, 2, 3, 4, 5, 6, 7 …) (must be 0)"),
        (Expectation.at_most("late", 500.0, 500, "ms"), True, "late: 500.0 ms (must be at most 500 ms)"),
        (Expectation.at_most("late", float("inf"), 500, "ms"), False, "late: inf ms (must be at most 500 ms)"),
        (Expectation.at_least("cut off", 1, 1), True, "cut off: 1 (must be at least 1)"),
        (Expectation.at_least("cut off", 0, 1), False, "cut off: 0 (must be at least 1)"),
    ],
)
def test_claim_compares_what_was_measured_with_what_must_be(expectation, holds, text):
    assert expectation.holds is holds
    assert str(expectation) == text


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([Outcome("a", [TRUE]), Outcome("b", [TRUE, TRUE])], 0),
        ([Outcome("a", [TRUE]), Outcome("b", [TRUE, FALSE])], 1),
        ([Outcome("a", [TRUE]), Outcome("ended early", [])], 1),
        ([], 1),
    ],
)
def test_exit_status_is_zero_only_when_every_scenario_has_expectations_and_all_are_met(outcomes, status):
    assert exit_status(outcomes) == status
