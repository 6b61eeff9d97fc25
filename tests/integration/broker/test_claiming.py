from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED, State
from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.consumers.registry import Consumer
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.stored_message import LARGE_BODY, Outgoing


def test_a_claim_takes_at_most_five_hundred(broker):
    broker.declare("q")
    broker.publish("q", *(b"%d" % number for number in range(1200)))
    batch = broker.claim_commands.claim(["q"], 1200, share=False)
    assert [message.body for message in batch.messages] == [b"%d" % number for number in range(MAX_CLAIMED)]
    assert batch.more == ["q"]
    broker.check()


def test_a_claim_stops_at_a_megabyte_and_puts_the_rest_back_in_place(broker):
    broker.declare("q")
    bodies = [bytes([ord("a") + number]) * 300_000 for number in range(6)]
    broker.publish("q", *bodies)
    batch = broker.claim_commands.claim(["q"], 100, share=False)
    assert [message.body for message in batch.messages] == bodies[:4]
    assert batch.more == ["q"]
    broker.check(swept=True)
    assert broker.bodies("q") == bodies[4:]


def test_one_message_over_the_limit_is_claimed_alone(broker):
    broker.declare("a", "b")
    broker.publish("a", b"x" * LARGE_BODY, b"small")
    broker.publish("b", b"other")
    batch = broker.claim_commands.claim(["a", "b"], 10, share=True)
    assert [len(message.body or b"") for message in batch.messages] == [LARGE_BODY]
    assert batch.more == ["a", "b"]
    assert broker.bodies("a", "b") == [b"small", b"other"]


def test_the_body_of_a_large_message_is_not_in_the_claim(broker):
    broker.declare("q")
    broker.publish("q", b"x" * (LARGE_BODY + 1), b"small")
    large, small = broker.claim("q")
    assert (large.body, small.body) == (None, b"small")
    assert broker.claim_commands.fetch_body(large) == b"x" * (LARGE_BODY + 1)
    broker.settle(Settlement.ACK, large)
    assert broker.claim_commands.fetch_body(large) is None


def test_credit_is_split_among_the_queues_and_what_one_leaves_goes_to_the_others(broker):
    broker.declare("a", "b", "c", "empty")
    broker.publish("a", *[b"a"] * 50)
    broker.publish("b", *[b"b"] * 2)
    broker.publish("c", *[b"c"] * 50)
    counts = [message.queue for message in broker.claim("a", "empty", "b", "c", credit=20, share=True)]
    assert len(counts) == 20
    assert counts.count("b") == 2
    assert min(counts.count("a"), counts.count("c")) >= 5


def test_without_sharing_the_first_queue_is_emptied_first(broker):
    broker.declare("a", "b")
    broker.publish("a", *[b"a"] * 5)
    broker.publish("b", *[b"b"] * 5)
    assert broker.bodies("b", "a", credit=7) == [b"b"] * 5 + [b"a"] * 2


def test_a_claim_tells_that_the_retry_of_the_task_is_published(broker):
    broker.declare("q")
    broker.publish("q", b"task")
    (first,) = broker.claim("q")
    assert not first.retried
    # As the script that publishes the retry does; then the worker dies, before its ack.
    broker.client.hset(f"message:{{q}}:{first.tag}", "retried", 1)
    broker.settle(Settlement.REQUEUE, first)
    (again,) = broker.claim("q")
    assert (again.tag, again.retried) == (first.tag, True)
    broker.check()


def test_tags_without_a_hash_are_dropped_counted_and_do_not_use_up_the_credit(broker):
    broker.declare("q")
    broker.client.zadd("queue:{q}", {f"0{number}.1": number for number in range(300)})
    broker.publish("q", b"alive", b"too")
    assert broker.bodies("q", credit=2) == [b"alive", b"too"]
    assert broker.client.hget("meta:{q}", "vanished") == b"300"
    broker.check()


def test_an_empty_claim_removes_the_wakeup_and_one_that_leaves_messages_sends_it(broker):
    broker.declare("q")
    broker.publish("q", b"1", b"2")
    broker.client.delete("wakeup:{q}")
    broker.claim("q", credit=1)
    assert broker.client.exists("wakeup:{q}")
    broker.claim("q", credit=1)
    assert not broker.client.exists("wakeup:{q}")
    broker.client.zadd("wakeup:{q}", {"work": 0})
    broker.claim("q")
    assert not broker.client.exists("wakeup:{q}")


def test_a_claim_of_twenty_queues_in_one_call(broker):
    names = [f"q{number}" for number in range(25)]
    broker.declare(*names)
    for name in names:
        broker.publish(name, name.encode())
    assert broker.bodies(*names) == [name.encode() for name in names[:20]]


def test_redelivery_and_failures_are_told_apart(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    expected = [
        (Settlement.RELEASE_UNSEEN, False, 0),
        (Settlement.RELEASE_SEEN, True, 0),
        (Settlement.FAIL, True, 1),
        (Settlement.RELEASE_UNSEEN, True, 1),
    ]
    (message,) = broker.claim("q")
    for number, (settlement, redelivered, failures) in enumerate(expected, 2):
        broker.settle(settlement, message)
        (message,) = broker.claim("q")
        assert (message.claim, message.redelivered, message.failures) == (number, redelivered, failures)


def test_a_claimed_task_that_has_expired_is_held_for_the_visibility_timeout(broker):
    """Else a second worker would revoke it as well."""
    broker.declare("q")
    broker.publisher.to_queue("q", Outgoing(b"{}", b"late", 255, life="1t"), PublishAttempt())
    broker.publish("q", b"in time")
    assert broker.bodies("q") == [b"late", b"in time"]
    seconds, _ = broker.client.time()
    deadlines = [deadline for _, deadline in broker.client.zrange("messages_index:{q}", 0, -1, withscores=True)]
    assert len(deadlines) == 2
    # The fixture's timeout is 30 s, less what this test took.
    assert min(deadlines) > (seconds + 20) * 1000
    broker.check()


def test_a_consumer_that_was_deposed_and_chosen_again_gets_nothing_before_it_knows(broker):
    """What it has in its buffer goes back first: it must not get what is behind that."""
    me = Consumer("me.1", "q", "tag")

    def claim(known):
        batch = broker.claim_commands.claim_restricted("q", 3, me.id, credit=3, activations=known)
        return batch.activations, batch.messages

    broker.declare("q", arguments={"x-single-active-consumer": True})
    broker.publish("q", *(b"%d" % number for number in range(6)))
    broker.consumers.join(me)
    chosen, nothing = claim(b"")
    assert nothing == []
    assert [message.body for message in claim(chosen)[1]] == [b"0", b"1", b"2"]
    # Between two of its claims.
    broker.consumers.leave("q", me.id)
    broker.consumers.join(me)
    chosen_again, nothing = claim(chosen)
    assert (chosen_again != chosen, nothing) == (True, [])
    assert [message.body for message in claim(chosen_again)[1]] == [b"3", b"4", b"5"]


@pytest.fixture
def two(broker):
    """An active consumer and one that stands by."""
    broker.declare("q", arguments={"x-single-active-consumer": True})
    consumers = [Consumer(f"me.{number}", "q", "tag") for number in (1, 2)]
    for consumer in consumers:
        broker.consumers.join(consumer)
    return consumers


def test_a_new_active_consumer_hears_of_it_though_there_is_no_work(broker, two):
    """It has to put back what the one before held."""
    wakeup = broker.keys.queue("q").wakeup_of(two[1].id)
    assert not broker.client.exists(wakeup)
    broker.consumers.leave("q", two[0].id)
    assert broker.client.exists(wakeup)


def test_one_who_stands_by_and_meets_the_end_of_a_pause_wakes_the_active_one(broker, two):
    keys = broker.keys.queue("q")
    Pausing(broker.commands, broker.keys).pause("q", "deploy", for_s=60)
    broker.publish("q", b"x")
    broker.client.hset(keys.meta, "paused_until", 1)
    broker.client.delete(keys.wakeup_of(two[0].id))
    assert broker.claim_commands.claim_restricted("q", 1, two[1].id, credit=1, activations=b"").state is State.STANDBY
    assert broker.client.exists(keys.wakeup_of(two[0].id))
