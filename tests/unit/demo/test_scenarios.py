"""Each scenario verifies records as the workers write them: an error in them must fail an expectation."""

import pytest

from celery_redis_plus.demo import scenarios


def failed_expectations(expectations):
    return [expectation.text for expectation in expectations if not expectation.holds]


# ---- priorities

PUBLISHED = [(0, 3), (1, 9), (2, 3), (3, 9)]


def started(*numbers):
    return [{"number": number, "priority": dict(PUBLISHED)[number]} for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((1, 3, 0, 2), []),
        ((1, 3, 0), ["tasks executed exactly once"]),
        ((1, 3, 0, 2, 2), ["tasks executed exactly once"]),
        ((1, 0, 3, 2), ["tasks that a lower priority overtook"]),
        ((3, 1, 0, 2), ["tasks out of publishing order within their priority"]),
        ((), ["tasks executed exactly once"]),
    ],
)
def test_priorities_are_judged_by_the_order_of_the_starts(numbers, wrong):
    assert failed_expectations(scenarios.verify_priorities(PUBLISHED, started(*numbers))) == wrong


# ---- countdowns


def on_time(late_s=0.005):
    return [
        {"number": number, "due": 100.0 + number, "at": 100.0 + number + late_s} for number in range(scenarios.COUNTDOWN_TASKS)
    ]


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (on_time(), []),
        (on_time(-0.001), ["tasks that started early"]),
        (on_time(0.6), ["longest lateness"]),
        (on_time()[1:], ["tasks executed exactly once"]),
        ([*on_time(), on_time()[0]], ["tasks executed exactly once"]),
        ([], ["tasks executed exactly once", "longest lateness"]),
    ],
)
def test_countdowns_are_judged_by_their_lateness(records, wrong):
    assert failed_expectations(scenarios.verify_countdowns(records, scenarios.lateness_ms(records, 0.0))) == wrong


def test_lateness_is_told_by_the_server_s_clock():
    record = {"number": 0, "due": 100.0, "at": 99.5}

    assert scenarios.lateness_ms([record], clock_offset_s=0.75) == {0: 250.0}


# ---- retries


def attempts(waits=(0.2, 0.4)):
    records = []
    for number in range(scenarios.RETRIED_TASKS):
        at = 100.0
        for attempt, wait in enumerate((0.0, *waits)):
            at += wait + 0.001 * bool(wait)
            records.append({"number": number, "attempt": attempt, "at": at})
    return records


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (attempts(), []),
        (attempts()[:-1], ["tasks that succeeded at attempt 3, each attempt made once"]),
        ([*attempts(), attempts()[-1]], ["tasks that succeeded at attempt 3, each attempt made once"]),
        (attempts((0.2, 0.3)), ["retries before their back-off was over"]),
        ([], ["tasks that succeeded at attempt 3, each attempt made once"]),
    ],
)
def test_retries_are_judged_by_their_attempts_and_waits(records, wrong):
    assert failed_expectations(scenarios.verify_retries(records)) == wrong


# ---- broadcasts


def hearings(one, two):
    return [{"worker": name, "number": number} for name, numbers in (("one", one), ("two", two)) for number in numbers]


ALL = list(range(scenarios.SENT_BROADCASTS))


@pytest.mark.parametrize(
    ("records", "answered", "wrong"),
    [
        (hearings(ALL, ALL), ["two", "one"], []),
        (
            hearings(ALL, ALL[1:]),
            ["two", "one"],
            ["broadcasts that worker two heard exactly once", "workers that heard them in another order"],
        ),
        (
            hearings([*ALL, 0], ALL),
            ["two", "one"],
            ["broadcasts that worker one heard exactly once", "workers that heard them in another order"],
        ),
        (hearings(ALL[::-1], ALL), ["two", "one"], ["workers that heard them in another order"]),
        (hearings(ALL, ALL), ["one"], ["answers to the ping", "workers that did not answer the ping once"]),
        (hearings(ALL, ALL), ["one", "one"], ["workers that did not answer the ping once"]),
    ],
)
def test_broadcasts_are_judged_by_what_each_worker_heard(records, answered, wrong):
    assert failed_expectations(scenarios.verify_broadcasts(records, answered)) == wrong


# ---- crash

KILLED_AT = 100.0


def whole(number, worker, at=99.0):
    return [
        {"number": number, "worker": worker, "event": "start", "at": at},
        {"number": number, "worker": worker, "event": "end", "at": at + 0.04},
    ]


def crash_records(back_after_s=5.5, lost=(), repeated=()):
    """The victim was killed in the middle of task 1; the survivor did all else."""
    records = [{"number": 1, "worker": scenarios.VICTIM, "event": "start", "at": KILLED_AT}]
    for number in range(scenarios.CRASH_TASKS):
        if number not in lost:
            records += whole(number, scenarios.SURVIVOR, KILLED_AT + back_after_s if number == 1 else 99.0)
    for number in repeated:
        records += whole(number, scenarios.SURVIVOR, KILLED_AT + 1)
    return records


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (crash_records(), []),
        (crash_records(lost=[7]), ["tasks executed to the end at least once", "tasks lost"]),
        (crash_records(lost=[1]), ["tasks executed to the end at least once", "tasks lost", "back at a living worker after"]),
        (crash_records(repeated=[7]), ["tasks repeated without need (the killed worker had not begun them)"]),
        (crash_records(repeated=[1], back_after_s=0.5), []),
        (crash_records(back_after_s=7.2), ["back at a living worker after"]),
        (crash_records()[1:], ["tasks that the killed worker was in the middle of"]),
    ],
)
def test_crash_is_judged_by_starts_and_ends(records, wrong):
    assert failed_expectations(scenarios.verify_crash(records, KILLED_AT)) == wrong


# ---- shutdown

DONE = sum(scenarios.EXECUTIONS.values())


@pytest.mark.parametrize(
    ("statuses", "left", "executions", "wrong"),
    [
        ({"one": 0}, {"q": 0}, DONE, []),
        ({"one": 1}, {"q": 0}, DONE, ["workers whose warm shutdown failed"]),
        ({"one": None}, {"q": 0}, DONE, ["workers whose warm shutdown failed"]),
        ({"one": 0}, {"q": 1}, DONE, ["queues with messages left"]),
        ({"one": 0}, {"q": 0}, DONE + 1, ["executions in all, apart from the crash"]),
    ],
)
def test_departure_is_judged_by_what_is_left(statuses, left, executions, wrong):
    assert failed_expectations(scenarios.verify_shutdown(statuses, left, executions)) == wrong
