"""When the time of `x-consumer-timeout` begins."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
from celery_redis_plus.maintenance.consumer_timeouts import ConsumerTimeouts
from celery_redis_plus.stored_message import Claimed

TIMEOUT_S = 10.0


class PutBack:
    """An acknowledger that notes what took too long."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def time_out(self, messages):
        self.tags += [unacked.tag for unacked in messages]


@pytest.fixture
def unacked_messages():
    messages = UnackedMessages()
    messages.timeouts_s["q"] = TIMEOUT_S
    return messages


def claim(unacked_messages, number=1):
    return unacked_messages.add([Claimed("t", "q", number, 0, redelivered=False, envelope=b"{}", body=b"x")], "session", 0.0)


def test_it_begins_with_the_delivery_and_anew_with_the_work_and_with_another_claim(clock, unacked_messages):
    put_back = PutBack()
    timeouts = ConsumerTimeouts(unacked_messages, put_back, SubscriberCursors(60.0))

    def is_over_after(seconds):
        """Return whether the message goes back then, and not before."""
        timeouts.run()
        clock.advance(seconds - 1)
        timeouts.run()
        early = list(put_back.tags)
        clock.advance(1)
        timeouts.run()
        return not early and put_back.tags == ["t"]

    (unacked,) = claim(unacked_messages)
    assert not is_over_after(TIMEOUT_S + 1), "it waits in the buffer"
    assert unacked_messages.deliver(unacked)
    assert not is_over_after(TIMEOUT_S - 1)
    unacked.started = True
    assert not is_over_after(TIMEOUT_S - 1)
    assert claim(unacked_messages, 2) == []
    assert is_over_after(TIMEOUT_S)
