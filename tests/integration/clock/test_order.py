"""Messages of one priority are delivered in the order in which they were published, wherever the server's clock steps."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.stored_message import LARGE_BODY
from tests.integration.clock.conftest import sweeper_of
from tests.support.inbox import declare, publish

HOUR_S = 3600


@pytest.mark.parametrize("step_s", [-0.005, -HOUR_S, HOUR_S])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="plain"),
        pytest.param({"x-message-ttl": 10 * HOUR_S * 1000}, id="ttl"),
        pytest.param({"x-priority-ageing": 60_000}, id="ageing"),
    ],
)
def test_a_message_does_not_overtake_those_that_were_published_before_a_step(clock, broker, arguments, step_s):
    broker.declare("q", arguments=arguments)
    published = [b"%d" % number for number in range(12)]
    broker.publish("q", *published[:6])
    clock.step(step_s)
    broker.publish("q", *published[6:9])
    # What stands in a queue is as old as the clock ever was, swept or not.
    sweeper_of(broker, "s").run()
    clock.step(step_s)
    broker.publish("q", *published[9:])
    assert broker.bodies("q") == published


def test_a_step_back_changes_no_order_in_a_queue_with_limits(clock, connect):
    channel = connect().channel()
    declare(channel, "q", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    publish(channel, "q", 1, 2)
    clock.step(-HOUR_S)
    publish(channel, "q", 3, 4)
    assert [channel.basic_get("q", no_ack=True).payload for _ in range(4)] == [1, 2, 3, 4]


def test_a_step_back_puts_no_large_message_before_older_ones(clock, broker):
    broker.declare("q")
    published = [b"%d" % number * (LARGE_BODY + 1) for number in range(3)]
    broker.publish("q", published[0])
    clock.step(-HOUR_S)
    broker.publish("q", *published[1:])
    assert [broker.claim_commands.fetch_body(message) for message in broker.claim("q")] == published


def test_what_goes_back_after_a_step_stands_where_it_stood(clock, broker):
    broker.declare("q")
    broker.publish("q", b"1", b"2")
    messages = broker.claim("q")
    clock.step(-HOUR_S)
    broker.publish("q", b"3")
    broker.settle(Settlement.REQUEUE, *messages)
    assert broker.bodies("q") == [b"1", b"2", b"3"]


def test_priorities_count_before_the_order_after_a_step(clock, broker):
    broker.declare("q")
    broker.publish("q", b"low", rank=255)
    broker.publish("q", b"high", rank=0)
    clock.step(-HOUR_S)
    broker.publish("q", b"lower", rank=255)
    broker.publish("q", b"higher", rank=0)
    assert broker.bodies("q") == [b"high", b"higher", b"low", b"lower"]


def test_a_delayed_message_stands_among_those_of_its_due_time_after_a_step(clock, broker):
    broker.declare("q")
    broker.publish("q", b"1", b"2")
    clock.step(-HOUR_S)
    broker.publish("q", b"3", eta="+1000")
    broker.publish("q", b"4")
    sweeper = sweeper_of(broker, "s")
    clock.step(2)
    sweeper.run()
    broker.publish("q", b"5")
    assert broker.bodies("q") == [b"1", b"2", b"3", b"4", b"5"]


def test_a_due_message_stays_before_those_that_are_published_after_a_step(clock, broker):
    broker.declare("q")
    broker.publish("q", b"1", eta="+1000")
    clock.step(2)
    sweeper_of(broker, "s").run()
    clock.step(-HOUR_S)
    broker.publish("q", b"2")
    assert broker.bodies("q") == [b"1", b"2"]


def test_what_is_rescheduled_for_now_stays_before_what_is_published_after_a_step(clock, broker, redis_client):
    broker.declare("q")
    broker.publish("q", b"1", eta="+60000")
    (tag,) = redis_client.zrange("delayed:{q}", 0, -1)
    clock.step(10)
    assert Messages(broker.commands, broker.keys, dead_letter_max=5).reschedule("q", tag.decode(), 0)
    clock.step(-HOUR_S)
    broker.publish("q", b"2")
    assert broker.bodies("q") == [b"1", b"2"]
