"""A field of a queue's record that holds no number, though it should, keeps no message from going its way, and loses none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scripts.workshop import Workshop

pytestmark = pytest.mark.same_everywhere

#: Of the record of a lasting queue.
FIELDS = ("ttl", "limit", "retry", "ageing", "next", "newest", "lease", "grace", "timeouts", "sweeper")
BODIES = {
    b"dead1",
    b"dead2",
    b"held1",
    b"held2",
    b"ready1",
    b"ready2",
    b"ready3",
    b"mortal",
    b"later1",
    b"later2",
    b"new",
    b"eta",
}


def release(one: Workshop) -> None:
    one.settle("RELEASE_SEEN")


def requeue(one: Workshop) -> None:
    one.settle("REQUEUE")


def fail(one: Workshop) -> None:
    one.settle("FAIL")


def reject(one: Workshop) -> None:
    one.settle("REJECT")


def lose(one: Workshop) -> None:
    one.run("recover_sessions", one.q.consumer_keys, "", 100, 5, 50, "holder")


@pytest.mark.sample(50)
@pytest.mark.parametrize("how", [release, requeue, fail, reject, lose])
@pytest.mark.parametrize("odd", ["text", "", "a b c d e f g h"])
@pytest.mark.parametrize("field", FIELDS)
def test_an_odd_field_of_a_record_stops_and_loses_nothing(shop: Callable[[], Workshop], caplog, field, odd, how):
    one = shop()
    one.fill()
    one.client.hset(one.q.meta, field, odd)
    one.publish(b"new")
    one.publish(b"eta", eta="+30000", life="+600000")
    how(one)
    one.client.hset(one.q.meta, field, odd)
    one.recover()
    assert {body for body, count in one.found().items() if count == 1} == BODIES
    assert not one.client.exists(one.q.delayed)
    assert [line for line in caplog.messages if "cannot be" in line] == []
