"""Each scenario verifies records as the workers write them: an error in them must fail an expectation."""

import pytest

from celery_redis_plus.demo.main import SCENARIOS
from celery_redis_plus.demo.scenarios import broadcasts, countdowns, crash, priorities, retries, worker_shutdown


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
    assert failed_expectations(priorities.verify(PUBLISHED, started(*numbers))) == wrong


def test_priorities_table_has_the_places_of_each_level():
    assert priorities.rows(PUBLISHED, started(1, 3, 0)) == [("9", "2", "2", "1 to 2"), ("3", "2", "1", "3 to 3")]
    assert priorities.rows(PUBLISHED, []) == [("9", "2", "0", "never"), ("3", "2", "0", "never")]


def test_rate_is_zero_where_there_is_none():
    assert priorities.rate([]) == 0
    assert priorities.rate([{"at": 1.0}, {"at": 1.5}, {"at": 2.0}]) == 2.0


# ---- countdowns


def on_time(late_s=0.005):
    return [{"number": number, "due": 100.0 + number, "at": 100.0 + number + late_s} for number in range(countdowns.TASKS)]


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
    assert failed_expectations(countdowns.verify(records, countdowns.lateness_ms(records))) == wrong


def test_lateness_is_told_by_the_server_s_clock():
    record = {"number": 0, "due": 100.0, "at": 99.5}

    assert countdowns.lateness_ms([record], clock_offset_s=0.75) == {0: 250.0}


# ---- retries


def attempts(waits=(0.2, 0.4)):
    records = []
    for number in range(retries.TASKS):
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
    assert failed_expectations(retries.verify(records)) == wrong


def test_retries_table_tells_the_waits():
    assert [row[0:2] for row in retries.rows(attempts())] == [("1", "10"), ("2", "10"), ("3", "10")]
    assert retries.rows(attempts())[1][2:] == ("0.201", "0.201")
    assert retries.rows([])[0] == ("1", "0", "", "")


# ---- broadcasts


def hearings(one, two):
    return [{"worker": name, "number": number} for name, numbers in (("one", one), ("two", two)) for number in numbers]


ALL = list(range(broadcasts.TASKS))


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
    assert failed_expectations(broadcasts.verify(records, answered)) == wrong


# ---- crash

KILLED_AT = 100.0


def whole(number, worker, at=99.0):
    return [
        {"number": number, "worker": worker, "event": "start", "at": at},
        {"number": number, "worker": worker, "event": "end", "at": at + 0.04},
    ]


def crash_records(back_after_s=4.0, lost=(), repeated=()):
    """The victim was killed in the middle of task 1; the survivor did all else."""
    records = [{"number": 1, "worker": crash.VICTIM, "event": "start", "at": KILLED_AT}]
    for number in range(crash.TASKS):
        if number not in lost:
            records += whole(number, crash.SURVIVOR, KILLED_AT + back_after_s if number == 1 else 99.0)
    for number in repeated:
        records += whole(number, crash.SURVIVOR, KILLED_AT + 1)
    return records


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (crash_records(), []),
        (crash_records(lost=[7]), ["tasks executed to the end at least once", "tasks lost"]),
        (crash_records(lost=[1]), ["tasks executed to the end at least once", "tasks lost", "back at a living worker after"]),
        (crash_records(repeated=[7]), ["tasks repeated without need (the killed worker had not begun them)"]),
        (crash_records(repeated=[1], back_after_s=0.5), []),
        (crash_records(back_after_s=5.2), ["back at a living worker after"]),
        (crash_records()[1:], ["tasks that the killed worker was in the middle of"]),
    ],
)
def test_crash_is_judged_by_starts_and_ends(records, wrong):
    assert failed_expectations(crash.verify(records, KILLED_AT)) == wrong


# ---- worker shutdown


@pytest.mark.parametrize(
    ("statuses", "left", "counts", "wrong"),
    [
        ({"one": 0}, {"q": 0}, worker_shutdown.EXPECTED, []),
        ({"one": 1}, {"q": 0}, worker_shutdown.EXPECTED, ["workers whose warm shutdown failed"]),
        ({"one": None}, {"q": 0}, worker_shutdown.EXPECTED, ["workers whose warm shutdown failed"]),
        ({"one": 0}, {"q": 1}, worker_shutdown.EXPECTED, ["queues with messages left"]),
        ({"one": 0}, {"q": 0}, {**worker_shutdown.EXPECTED, "more": 1}, ["executions in all, apart from the crash"]),
    ],
)
def test_departure_is_judged_by_what_is_left(statuses, left, counts, wrong):
    assert failed_expectations(worker_shutdown.verify(statuses, left, counts)) == wrong


def test_every_scenario_runs():
    assert {run_scenario.__module__.rpartition(".")[2] for run_scenario in SCENARIOS} == {
        *("priorities", "countdowns", "retries", "broadcasts", "crash", "worker_shutdown"),
    }
