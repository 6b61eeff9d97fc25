"""What the demo of the pipeline claims is false when the report differs from the ledger."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pandas as pd

from celery_redis_plus.demo.pipeline.app import fate_of, task_of
from celery_redis_plus.demo.pipeline.verification import STATES, Ledger, Reported, is_busy, verify
from celery_redis_plus.spark.replay import Replayed

TASKS = 200


def records():
    """Every attempt of every task: begun, and ended."""
    for number in range(TASKS):
        for attempt in range(3):
            fate = fate_of(number, attempt)
            facts = {
                "id": f"{number}.{attempt}",
                "task": task_of(number),
                "number": number,
                "worker": "one",
                "eta": None,
                "at": 1.0,
            }
            yield facts
            yield facts | {"fate": fate}
            if fate != "retried":
                break


def reported(ledger, **changes):
    states = ledger.states()
    by_task = [
        {"task": task, "messages": sum(of.values()), "completed": of["COMPLETED"], "failed": of["FAILED"], "dead": of["DEAD"]}
        for task, of in ledger.states_of_tasks().items()
    ]
    figures = {
        "states": pd.DataFrame({"state": list(states), "count": list(states.values())}),
        "by_task": pd.DataFrame(by_task),
        "failures": pd.DataFrame([{"error": "ValueError", "count": states["FAILED"]}]),
        "lateness": pd.DataFrame([{"messages": 0}]),
        "workers": pd.DataFrame([{"worker": "one@demo", "acked": states["COMPLETED"], "requeued": 1}]),
    }
    known = {"figures": figures, "repeated": set(), "written": 900, "rows": 900, "distinct": 900}
    return Reported(**known | {"replay": Replayed(states["DEAD"], 0, 0)} | changes)


def failed_expectations(ledger, reported):
    return [expectation for expectation in verify(ledger, reported, TASKS, "one") if not expectation.holds]


def test_equal_figures_hold():
    ledger = Ledger(list(records()))

    assert set(ledger.states()) == set(STATES.values())
    assert failed_expectations(ledger, reported(ledger)) == []


@pytest.mark.parametrize(
    ("figure", "column"),
    [("states", "count"), ("by_task", "failed"), ("failures", "count"), ("workers", "acked"), ("lateness", "messages")],
)
def test_one_message_more_in_a_figure_is_seen(figure, column):
    ledger = Ledger(list(records()))
    found = reported(ledger)
    found.figures[figure].loc[0, column] += 1

    assert failed_expectations(ledger, found)


@pytest.mark.parametrize(
    "changes",
    [{"rows": 901}, {"distinct": 899}, {"replay": Replayed(2, 1, 0)}, {"replay": Replayed(0, 0, 0)}, {"wrong": ["numbers q: x"]}],
    ids=str,
)
def test_lost_and_doubled_events_and_missing_payloads_are_seen(changes):
    ledger = Ledger(list(records()))

    assert failed_expectations(ledger, reported(ledger, **changes))


def test_a_lost_task_and_an_unseen_redelivery_are_seen():
    complete = list(records())
    lost = Ledger([record for record in complete if record["number"] != 57])
    assert failed_expectations(lost, reported(lost))
    twice = Ledger([*complete, complete[0]])
    assert failed_expectations(twice, reported(twice))
    assert not failed_expectations(twice, reported(twice, repeated={complete[0]["id"]}))


def test_a_worker_is_killed_while_it_has_begun_a_task_and_not_ended_it():
    begun, ended = {"worker": "two"}, {"worker": "two", "fate": "succeeded"}
    other = {"worker": "one"}
    assert is_busy([ended, begun, other], "two")
    assert not is_busy([begun, ended, other], "two")
    assert not is_busy([other], "two")
