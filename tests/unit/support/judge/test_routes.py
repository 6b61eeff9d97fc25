"""The judge and exchanges: which queues a publish has to reach, and which it may."""

from __future__ import annotations

import pytest

from tests.support.judge.judging import assert_kept, judge
from tests.support.judge.promises import at_least_once, routing
from tests.unit.support.judge.test_promises import of, rolled_back, told


def bound(queue, key, kind="topic"):
    return "bound", {"queue": queue, "detail": {"exchange": "topics", "type": kind, "key": key}}


def sent_by(key):
    return of("publish", queue=key, detail={"via": "topics", "key": key}), of("confirmed", queue=key)


TOPICS = (bound("all", "a.#"), bound("some", "*.b"), bound("same", "a.c.d", "direct"))
SEEN_EMPTY = tuple(("drained", {"queue": queue}) for queue in ("all", "some", "same"))
KEPT = {}
KEPT["a topic goes to two queues, and each has it once"] = (
    *TOPICS, *sent_by("a.b"), of("delivered", queue="all", claim=1), of("acked"),
    of("delivered", queue="some", tag="u", claim=1), of("acked", tag="u"), *SEEN_EMPTY,
)  # fmt: skip
KEPT["a queue was bound after the publish"] = (
    *sent_by("a.b"), *TOPICS, of("delivered", queue="all", claim=1), of("acked"), *SEEN_EMPTY,
)  # fmt: skip
KEPT["the server lost the binding"] = (
    *TOPICS, rolled_back(0.0), *(("depth", {}) for _ in range(3)), *sent_by("a.b"), of("delivered", queue="all", claim=1),
    of("acked"), *SEEN_EMPTY,
)  # fmt: skip
BROKEN = {
    "one of its two queues has lost it": (
        at_least_once,
        (*TOPICS, *sent_by("a.b"), of("delivered", queue="all", claim=1), of("acked"), *SEEN_EMPTY),
    ),
    "it came by a queue that is not bound to its key": (
        routing,
        (*TOPICS, *sent_by("a.c"), of("delivered", queue="all", claim=1), of("delivered", queue="some", tag="u", claim=1)),
    ),
}


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT)
def test_a_message_that_comes_by_each_of_its_queues_passes(lines):
    assert_kept(told(*lines))


@pytest.mark.parametrize(("promise", "lines"), BROKEN.values(), ids=BROKEN)
def test_a_message_that_misses_a_queue_or_comes_by_another_one_is_named(promise, lines):
    assert {one.promise for one in judge(told(*lines))} == {promise.NAME}


@pytest.mark.parametrize(
    ("pattern", "key", "takes"),
    [
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "a.b.c", True),
        ("#", "", True),
        ("*.b", "a.b", True),
        ("*.b", "b", False),
        ("a.*", "a.b.c", False),
        ("a+b", "aab", False),
    ],
)
def test_the_judge_knows_topics(pattern, key, takes):
    history = told(bound("q", pattern), *sent_by(key))
    assert history.may_reach(history.of("publish")[0]) == (("q",) if takes else ())
