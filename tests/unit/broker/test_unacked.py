"""The record of an unacked message: settled once, by whichever thread comes first, and kept until the server has confirmed it."""

from __future__ import annotations

import gc
import weakref

import pytest

from celery_redis_plus.broker.consumers import unacked as unacked_module
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import DeliveryState, UnackedMessages
from celery_redis_plus.stored_message import Claimed


@pytest.fixture
def unacked():
    return UnackedMessages()


def claimed(tag="a", claim=1):
    return Claimed(tag, "q", claim, failures=0, redelivered=False, envelope=b"{}", body=b"")


def delivered(unacked, tag="a", session="mine"):
    (record,) = unacked.add([claimed(tag)], session, 0.0)
    assert unacked.deliver(record)
    return record


def test_an_ack_that_comes_before_a_release_stays_an_ack(unacked):
    record = delivered(unacked)
    taken = unacked.begin_settling("a", Settlement.ACK)
    unacked.defer(taken, Settlement.ACK)
    # Maintenance had looked for orphans just before.
    unacked.release(record)
    assert [(one.tag, one.settlement) for one in unacked.take_deferred()] == [("a", Settlement.ACK)]


def test_a_message_that_is_released_is_not_acked_any_more(unacked):
    record = delivered(unacked)
    unacked.release(record)
    assert unacked.begin_settling("a", Settlement.ACK) is None
    assert [one.settlement for one in unacked.take_deferred()] == [Settlement.RELEASE_SEEN]


def test_a_confirmed_release_does_not_forget_a_claim_that_came_meanwhile(unacked):
    released = delivered(unacked)
    unacked.begin_settling("a", Settlement.REQUEUE)
    (again,) = unacked.add([claimed(claim=2)], "mine", 0.0)
    unacked.discard(released)
    assert unacked.find("a") is again


def test_a_message_that_goes_back_is_not_delivered(unacked):
    (record,) = unacked.add([claimed()], "mine", 0.0)
    unacked.abandon("mine", ["q"])
    assert not unacked.deliver(record)
    assert record.state is DeliveryState.SETTLING


def test_the_content_of_a_message_goes_with_its_settlement(unacked):
    (record,) = unacked.add([claimed()], "mine", 0.0)
    assert record.content.envelope == b"{}"
    unacked.begin_settling("a", Settlement.RELEASE_UNSEEN)
    assert record.content is None
    assert unacked.find("a") is record


def test_a_message_that_is_claimed_again_while_it_waits_has_the_content_of_the_later_claim(unacked):
    (record,) = unacked.add([claimed()], "mine", 0.0)
    assert unacked.add([claimed(claim=2)], "another", 0.0) == [record]
    assert (record.claim, record.content.claim, record.session) == (2, 2, "another")


def test_a_broken_session_leaves_its_buffer_at_once_and_its_deliveries_as_orphans(unacked):
    unacked.add([claimed("buffered")], "mine", 0.0)
    record = delivered(unacked, "delivered")
    delivered(unacked, "other", session="another")
    unacked.abandon("mine", {"q"}, [record])
    assert [(one.tag, one.settlement) for one in unacked.take_deferred()] == [("buffered", Settlement.RELEASE_UNSEEN)]
    assert unacked.orphaned() == [record]


def test_a_session_is_broken_until_all_of_its_queues_are_recovered(unacked):
    unacked.abandon("mine", ["q"])
    # Another channel of the connection, while maintenance is at work on the first one's queues.
    unacked.abandon("mine", ["r"])
    unacked.recovered("mine", frozenset({"q"}))
    assert unacked.broken_sessions() == {"mine": frozenset({"r"})}
    unacked.recovered("mine", frozenset({"r"}))
    assert unacked.broken_sessions() == {}


def test_what_a_dropped_session_had_delivered_goes_back_but_what_closed_channels_have_left_is_kept(unacked):
    kept, dropped = delivered(unacked, "kept"), delivered(unacked, "dropped")
    unacked.orphan([kept])
    unacked.drop("mine", ())
    assert unacked.take_deferred() == [dropped]
    assert unacked.orphaned() == [kept]


def test_a_record_keeps_no_message_alive(unacked):
    class Message:
        pass

    message = Message()
    record = delivered(unacked)
    record.message = weakref.ref(message)
    assert record.alive is message
    del message
    gc.collect()
    assert record.alive is None


def test_only_the_messages_acked_last_are_acked_again(unacked, monkeypatch):
    monkeypatch.setattr(unacked_module, "MAX_FINISHED_TAGS", 10)
    for number in range(30):
        delivered(unacked, str(number))
        unacked.discard(unacked.begin_settling(str(number), Settlement.ACK))
    assert unacked.add([claimed(str(number), 2) for number in range(20, 30)], "mine", 0.0) == []
    assert [record.tag for record in unacked.take_deferred()] == [str(number) for number in range(20, 30)]
    assert len(unacked.add([claimed(str(number), 2) for number in range(20)], "mine", 0.0)) == 20
