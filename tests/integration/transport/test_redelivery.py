"""What comes back: rejected, recovered, handed back by cancel and close; where it stands then, and what it says of itself."""

from __future__ import annotations

import pytest
from kombu.exceptions import ChannelError

from tests.support.inbox import Inbox, declare, publish
from tests.support.invariants import violations
from tests.support.machine_time import machine_time
from tests.support.program import run_forked
from tests.support.waiting import wait_until


def unacked(channel, queue="q"):
    return channel.queue_sizes(queue).unacked


def test_a_requeued_message_stands_in_its_old_place_and_says_that_it_is_redelivered(channel):
    inbox = Inbox(channel, "q", prefetch=2, ack=False)
    publish(channel, "q", *range(4))
    inbox.drain(2)
    inbox.messages[0].requeue()
    inbox.messages[1].ack()
    assert inbox.drain(4)[2:] == [0, 2]
    again = inbox.messages[2]
    assert again.delivery_info["redelivered"]
    # What its consumer wants is no failure.
    assert again.headers["x-delivery-count"] == 0
    assert again.headers["x-acquired-count"] == 2
    assert not inbox.messages[3].delivery_info["redelivered"]


def test_a_message_with_the_headers_of_a_redelivered_one_begins_its_own_counts(channel):
    publish(channel, "q", "first")
    channel.basic_get("q").requeue()
    first = channel.basic_get("q")
    first.ack()
    publish(channel, "q", "retry", headers={"own": 1, **first.headers})
    retry = channel.basic_get("q")
    assert retry.headers == {"own": 1}
    retry.requeue()
    assert channel.basic_get("q").headers == {"own": 1, "x-delivery-count": 0, "x-acquired-count": 2}


def test_a_requeued_message_keeps_its_priority(channel):
    declare(channel, "q")
    publish(channel, "q", "low", priority=1)
    publish(channel, "q", "high", priority=9)
    message = channel.basic_get("q")
    assert message.payload == "high"
    message.requeue()
    publish(channel, "q", "also high", priority=9)
    assert Inbox(channel, "q").drain(3) == ["high", "also high", "low"]


def test_a_rejected_message_is_kept_as_a_dead_letter_and_delivered_no_more(channel, redis_client):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "poison")
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: redis_client.zcard("dead:{q}") == 1)
    assert inbox.rest() == ["poison"]
    assert violations(redis_client) == []


@pytest.mark.timeout(60)
def test_the_message_of_a_consumer_that_died_is_recovered_redelivered_and_in_place(connect, broker_url):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q")
    publish(channel, "q", "first")
    publish(channel, "q", "second", priority=3)
    code = (
        "import os, kombu, celery_redis_plus\n"
        f"c = kombu.Connection({broker_url!r}, transport_options={{'visibility_timeout': 3}})\n"
        "m = c.channel().basic_get('q'); assert m.payload == 'second', m.payload; os._exit(0)\n"
    )
    ended = run_forked(code)
    assert ended.returncode == 0, ended.stdout
    died = machine_time()
    inbox = Inbox(channel, "q", prefetch=1)
    assert inbox.drain(2, timeout_s=12) == ["first", "second"]
    assert machine_time() - died <= 3 + 1 + 1, "recovery takes at most the visibility timeout and a second"
    assert inbox.messages[1].delivery_info["redelivered"]
    assert inbox.messages[1].headers["x-delivery-count"] == 1


def test_a_message_that_is_worked_on_longer_than_the_visibility_timeout_stays_claimed(connect):
    connection = connect(visibility_timeout=3)
    inbox = Inbox(connection.channel(), "q", ack=False)
    publish(inbox.channel, "q", "long")
    inbox.drain(1)
    other = Inbox(connect(visibility_timeout=3).channel(), "q")
    assert other.rest(quiet_s=4.5) == []
    inbox.messages[0].ack()
    wait_until(lambda: unacked(inbox.channel) == 0)
    assert other.rest() == []


def test_cancel_hands_back_what_was_claimed_and_not_delivered(connect):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", *range(10))
    inbox = Inbox(channel, "q", prefetch=6, ack=False)
    inbox.drain(2)
    assert unacked(channel) == 6
    inbox.cancel()
    assert unacked(channel) == 2
    other = Inbox(connect().channel(), "q")
    assert other.drain(8) == list(range(2, 10))
    assert not any(message.delivery_info["redelivered"] for message in other.messages)
    for message in inbox.messages:
        message.ack()
    wait_until(lambda: unacked(channel) == 0)


def test_closing_a_channel_gives_everything_unsettled_back_in_place(connect):
    connection = connect()
    channel = connection.channel()
    declare(channel, "q")
    publish(channel, "q", *range(6))
    inbox = Inbox(channel, "q", prefetch=4, ack=False)
    inbox.drain(2)
    channel.close()
    other = Inbox(connect().channel(), "q")
    assert other.drain(6) == list(range(6))
    assert [bool(m.delivery_info["redelivered"]) for m in other.messages] == [True, True, False, False, False, False]
    # Giving back is no failure.
    assert other.messages[0].headers["x-delivery-count"] == 0


def test_closing_the_connection_gives_everything_back_too(connect):
    connection = connect()
    declare(connection.default_channel, "q")
    publish(connection.default_channel, "q", *range(3))
    Inbox(connection.channel(), "q", ack=False).drain(2)
    connection.close()
    assert Inbox(connect().channel(), "q").drain(3) == [0, 1, 2]


def test_basic_recover_gives_back_what_was_delivered(channel):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(3))
    inbox.drain(3)
    inbox.messages[1].ack()
    inbox.consumer.recover(requeue=True)
    assert inbox.drain(5)[3:] == [0, 2]
    assert inbox.messages[3].delivery_info["redelivered"]


def test_recover_without_requeue_is_refused(channel):
    with pytest.raises(ChannelError, match="not supported"):
        channel.basic_recover(requeue=False)


def test_no_ack_settles_at_delivery(channel):
    inbox = Inbox(channel, "q", no_ack=True, prefetch=1)
    publish(channel, "q", *range(5))
    assert inbox.drain(5) == list(range(5))
    wait_until(lambda: unacked(channel) == 0)
    assert channel.queue_sizes("q").ready == 0


def test_ack_multiple_settles_all_up_to_it(channel):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(4))
    inbox.drain(4)
    inbox.messages[2].ack(multiple=True)
    wait_until(lambda: unacked(channel) == 1)


def test_ack_multiple_of_the_tag_0_settles_all(channel):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(4))
    inbox.drain(4)
    channel.basic_ack(0, multiple=True)
    wait_until(lambda: unacked(channel) == 0)
    assert channel.queue_sizes("q").ready == 0


def test_a_second_ack_and_an_unknown_tag_change_nothing(channel):
    inbox = Inbox(channel, "q")
    publish(channel, "q", "once")
    inbox.drain(1)
    channel.basic_ack(inbox.messages[0].delivery_tag)
    channel.basic_ack("no such tag")
    channel.basic_ack(5)
    channel.basic_reject("no such tag", requeue=True)
    publish(channel, "q", "twice")
    assert inbox.drain(2) == ["once", "twice"]
    wait_until(lambda: unacked(channel) == 0)


def test_a_late_ack_on_a_closed_channel_is_no_error_and_the_message_comes_again(connect):
    connection = connect()
    channel = connection.channel()
    publish(channel, "q", "late")
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(1)
    channel.close()
    inbox.messages[0].channel.basic_ack(inbox.messages[0].delivery_tag)
    again = Inbox(connection.channel(), "q")
    assert again.exactly(1) == ["late"]
    assert again.messages[0].delivery_info["redelivered"]
    wait_until(lambda: unacked(again.channel) == 0)


@pytest.mark.parametrize(
    "use",
    [
        lambda channel: publish(channel, "q", "x"),
        lambda channel: channel.queue_declare("q"),
        lambda channel: channel.exchange_declare("e"),
        lambda channel: channel.queue_bind("q", "e", "k"),
        lambda channel: channel.queue_purge("q"),
        lambda channel: channel.queue_delete("q"),
        lambda channel: channel.basic_consume("q"),
        lambda channel: channel.basic_get("q"),
        lambda channel: channel.basic_qos(0, 1),
        lambda channel: channel.basic_recover(requeue=True),
    ],
)
def test_a_closed_channel_says_so(connect, use):
    connection = connect()
    channel = connection.channel()
    channel.close()
    with pytest.raises(ChannelError, match="closed"):
        use(channel)
    # The connection is as good as before.
    publish(connection.channel(), "q", "x")


def test_what_was_requeued_over_one_connection_is_delivered_over_another_of_the_same_process(connect):
    """Although the answer to the requeue was not read by then."""
    first, second = connect().channel(), connect().channel()
    declare(first, "q")
    publish(first, "q", "job")
    first.basic_get("q").requeue()
    again = second.basic_get("q")
    assert again.payload == "job"
    assert again.delivery_info["redelivered"]
    again.ack()
    wait_until(lambda: unacked(second) == 0)
    assert first.basic_get("q") is None
