"""Limiters when the server's clock steps, in a transient queue, and with costs over a smaller bucket."""

from __future__ import annotations

import json

import pytest

from celery_redis_plus.broker.arguments.limiters import Limiter
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.queues.limiters import take, taker_of


@pytest.fixture
def queue(shop):
    one = shop()
    one.declare("q")
    return one


def publish(shop, limiter, *bodies):
    shop.envelope = json.dumps({"headers": {"x-limiter": limiter}}).encode()
    shop.publish(*bodies)


def taken(shop, seconds=0.0):
    """Let so many seconds pass, sweep, and return how many messages come."""
    shop.clock.advance(round(seconds * 1000))
    shop.sweep()
    return len(shop.claim())


BODIES = [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("rule", ["10/s burst=3", "3/s window"])
def test_a_clock_that_goes_back_gives_nobody_more_and_lets_nobody_wait_longer(rule, queue):
    publish(queue, f"a:{rule}", *BODIES)
    assert taken(queue) == 3
    queue.clock.advance(-3_600_000)
    assert taken(queue) == 0
    assert taken(queue, 0.05) == 0
    assert taken(queue, 0.95) == 3
    assert taken(queue, 0.05) == 0


def test_a_hold_does_not_become_longer_when_the_clock_goes_back(queue):
    publish(queue, "a:10/s burst=3", *BODIES)
    queue.run("set_limiter", [queue.keys.limiter_rules], "a", 60_000, "-", 9)
    assert taken(queue) == 0
    queue.clock.advance(-3_600_000)
    assert taken(queue) == 0
    assert taken(queue, 61) == 3


def test_a_bucket_fills_with_time_up_to_its_burst(queue):
    publish(queue, "a:10/s burst=3", *BODIES)
    assert [taken(queue, seconds) for seconds in (0, 0.1, 0.2, 0.05, 0.05, 100)] == [3, 1, 2, 0, 1, 3]


def test_a_message_that_costs_more_than_a_bucket_that_was_made_smaller_takes_all_of_it_and_a_debt(queue):
    publish(queue, "a:10/s burst=8 cost=8", *BODIES[:2])
    assert taken(queue) == 1
    queue.run("set_limiter", [queue.keys.limiter_rules], "a", "", "10/s burst=2", 9)
    assert taken(queue, 0.1) == 0
    assert taken(queue, 0.1) == 1
    publish(queue, "a:10/s burst=8", *BODIES[:2])
    assert [taken(queue, seconds) for seconds in (0.6, 0.1)] == [0, 1]


def test_messages_that_wait_in_a_transient_queue_live_as_long_as_it(shop):
    one = shop()
    one.queues.declare("q", QueueArguments.parse("q", durable=False, auto_delete=True))
    publish(one, "a:1/h", *BODIES[:3])
    assert taken(one) == 1
    for key in (one.q.held, one.q.limited, one.q.limited_until):
        assert one.client.pttl(key) > 0
        one.client.pexpire(key, 5_000)
    tag = one.tag("held")
    one.client.pexpire(one.q.message + tag.encode(), 5_000)
    one.clock.advance(3_600_000)
    one.queues.touch("q")
    for key in (one.q.held, one.q.limited, one.q.limited_until, one.q.message + tag.encode()):
        assert one.client.pttl(key) > 5_000


def test_a_check_mends_a_limiter_that_nothing_looks_at_and_so_does_a_sweep(queue):
    publish(queue, "a:1/h", *BODIES[:3])
    assert taken(queue) == 1
    queue.client.delete(queue.q.limited_until)
    found = queue.run("check_limiters", [queue.q.meta], 1, "", 100)
    assert found == [b"", b"", b"limiter-without-time", b"limiter a"]
    assert queue.run("check_limiters", [queue.q.meta], 0, "", 100) == [b""]
    queue.client.delete(queue.q.limited_until)
    queue.sweep()
    assert queue.run("check_limiters", [queue.q.meta], 0, "", 100) == [b""]


def test_an_ack_lets_a_limiter_go_on_whose_time_has_come_though_nobody_sweeps(queue):
    publish(queue, "a:10/s burst=1", *BODIES[:3])
    queue.held = queue.claim()
    assert len(queue.held) == 1
    queue.clock.advance(1000)
    assert queue.claim() == []
    queue.settle("ACK")
    assert len(queue.claim()) == 1


def test_a_task_has_no_place_of_a_limiter_when_its_message_was_claimed_anew(queue):
    def seconds_to_wait():
        (claimed,) = queue.held = queue.claim()
        return take(queue.commands, queue.keys, Limiter.parse("gpu:concurrency=1"), taker_of("q", claimed.tag, claimed.claim))

    queue.publish(b"task")
    assert seconds_to_wait() == 0
    queue.settle("RELEASE_SEEN")
    assert seconds_to_wait() == 0


def test_a_place_whose_message_vanished_is_free_within_seconds(queue):
    publish(queue, "a:concurrency=1", b"first", b"second")
    (first,) = queue.claim()
    queue.client.zrem(queue.q.index, first.tag)
    queue.client.unlink(queue.q.message + first.tag.encode())
    assert [taken(queue, seconds) for seconds in (4.9, 0.1)] == [0, 1]


def test_a_rule_of_another_kind_that_was_set_before_the_first_message_does_not_hold(queue):
    queue.run("set_limiter", [queue.keys.limiter_rules], "a", "", "100/s burst=5", 9)
    publish(queue, "a:concurrency=1", *BODIES[:3])
    assert taken(queue) == 1


def test_tokens_are_booked_anew_when_others_have_had_as_many(queue):
    costly, cheap = (Limiter.parse(f"a:4/s burst=4 cost={cost}") for cost in (4, 1))

    def is_taken(limiter):
        return take(queue.commands, queue.keys, limiter, taker_of("q", "tag", "1")) == 0

    assert [is_taken(costly), is_taken(costly)] == [True, False]
    queue.clock.advance(1000)
    assert [is_taken(cheap), is_taken(costly), is_taken(costly)] == [False, True, False]
    queue.clock.advance(250)
    assert is_taken(cheap)
