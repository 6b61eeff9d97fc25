"""The judge of the chaos runs."""

import pytest

from tests.chaos.ledger import Entry
from tests.support.judge.executions import Judgement, Life, Verdict
from tests.support.judge.records import Rollback


def entries(task, worker, start, end):
    times = {"start": start, "end": end}
    return [Entry(event, task, worker, worker, at, at, redelivered=False) for event, at in times.items() if at is not None]


def verdict(life, end, again=30.0):
    """Of a task that `life` carried to its end at `end`, and that another worker ran again."""
    history = Judgement([life, Life("other", 2)], acks=8)
    (repeat,) = history.repeats(entries("t", 1, 5.0, end) + entries("t", 2, again, again + 1))
    return repeat.verdict


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, Verdict.RUNNING),
        (19.99, Verdict.LAST_ACKS),
        (9.99, Verdict.LAST_ACKS_BEFORE_SILENCE),
        (12.0, Verdict.LAST_ACKS),
    ],
)
def test_a_killed_worker_answers_for_its_last_acks_unless_it_was_cut_off_before(end, expected):
    assert verdict(Life("w", 1, killed_at=20.0, silent=[(10.0, 17.0)]), end) is expected


@pytest.mark.parametrize(("again", "expected"), [(16.0, Verdict.PRESUMED_DEAD), (21.0, Verdict.LAST_ACKS)])
def test_what_others_began_while_a_worker_was_silent_is_not_the_doing_of_its_kill(again, expected):
    assert verdict(Life("w", 1, killed_at=20.0, silent=[(10.0, 17.0)]), 17.01, again) is expected


@pytest.mark.parametrize(
    ("end", "reconnected", "expected"),
    [
        (9.5, float("inf"), Verdict.CUT_OFF),
        (9.5, 16.0, Verdict.CUT_OFF),
        (9.5, 12.0, Verdict.LAST_ACKS),
        (7.5, float("inf"), Verdict.LAST_ACKS),
    ],
)
def test_a_worker_that_died_without_a_connection_had_no_chance_to_send_its_acks(end, reconnected, expected):
    assert verdict(Life("w", 1, killed_at=20.0, cut_off=[(10.0, reconnected)]), end) is expected


def test_a_repeat_without_a_reason_is_illegal():
    assert verdict(Life("w", 1), 9.99) is Verdict.ILLEGAL


@pytest.mark.parametrize(
    ("end", "refused", "expected"),
    [
        (10.0, (9.9, 11.6), Verdict.ROLLED_BACK),
        (9.5, (9.9, 11.6), Verdict.ROLLED_BACK),
        (7.5, (9.9, 11.6), Verdict.ILLEGAL),
        (10.0, (12.9, 14.0), Verdict.ILLEGAL),
    ],
)
def test_an_ack_that_was_refused_is_lost_with_the_writes_that_the_server_took_next(end, refused, expected):
    """It is sent again when the server takes writes again, and confirmed then."""
    lost = {"rollbacks": [Rollback(12.0, 12.6)], "refusals": [refused]}
    history = Judgement([Life("w", 1), Life("other", 2)], acks=8, **lost)
    (repeat,) = history.repeats(entries("t", 1, 5.0, end) + entries("t", 2, 30.0, 31.0))
    assert repeat.verdict is expected
