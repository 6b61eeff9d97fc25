"""A strict judge: histories of runs that tell of every silence, of each run of a task, and of the end of each queue."""

from __future__ import annotations

import pytest

from tests.support.judge.judging import assert_kept, judge
from tests.support.judge.promises import at_least_once, repeats
from tests.support.judge.rules import Rules
from tests.unit.support.judge.test_promises import AGAIN, DELIVERED, DRAINED, PUBLISHED, RUN, B, child_killed, fate, of, told

EARLY = {"task": "early"}
#: What only a strict judge sees: the run of each task, and the end of each queue, are on record.
STRICTLY_BROKEN = {
    "acked, and never run": (at_least_once, (*PUBLISHED, DELIVERED, of("acked"), DRAINED)),
    "acked early, and never run by a worker that lives": (
        at_least_once,
        (of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), DRAINED),
    ),
    "acked early, and not begun long before its worker died": (
        at_least_once,
        (of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), fate("killed", tick=60.0), DRAINED),
    ),
    "acked early, and begun in another pool process than the one that was killed": (
        at_least_once,
        (
            *(of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), of("start", detail={"pid": 5})),
            *(child_killed(6), DRAINED),
        ),
    ),
    "acked late, and not run before its worker died": (
        at_least_once,
        (*PUBLISHED, DELIVERED, of("acked"), fate("killed"), DRAINED),
    ),
    "its queue was never seen empty": (at_least_once, PUBLISHED),
}
STRICTLY_KEPT = {
    "acked early, and run": (*(of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), *RUN, DRAINED),),
    "acked early, and lost with its worker": (
        *(of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), of("start"), fate("killed"), DRAINED),
    ),
    "acked early, and lost with its pool process": (
        *(of("publish", detail=EARLY), of("confirmed"), DELIVERED, of("acked"), of("start", detail={"pid": 5})),
        *(child_killed(5), DRAINED),
    ),
}
STRICT = Rules(strict=True, early=frozenset({"early"}))


@pytest.mark.parametrize(("promise", "lines"), STRICTLY_BROKEN.values(), ids=STRICTLY_BROKEN)
def test_a_strict_judge_wants_each_run_and_each_end_on_record(promise, lines):
    assert {one.promise for one in judge(told(*lines), STRICT)} == {promise.NAME}


@pytest.mark.parametrize("lines", STRICTLY_KEPT.values(), ids=STRICTLY_KEPT)
def test_a_task_that_is_acked_early_may_be_lost_with_its_worker_only(lines):
    assert_kept(told(*lines), STRICT)
    # Of a task that is acked late there is no such excuse.
    assert ("killed" in str(lines)) is bool(judge(told(*lines), Rules(strict=True)))


@pytest.mark.parametrize("fate_of_holder", ["disconnected", "lost"])
def test_a_strict_judge_takes_deaths_and_silence_only(fate_of_holder):
    lost = of("lost") if fate_of_holder == "lost" else fate("disconnected")
    history = told(DELIVERED, of("start"), of("end"), lost, AGAIN, of("start", process=B), of("end", process=B))
    assert judge(history) == []
    assert {one.promise for one in judge(history, Rules(strict=True))} == {repeats.NAME}
