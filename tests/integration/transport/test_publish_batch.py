"""kombu's publish batches: messages that share a round trip, and a script call for each queue."""

from __future__ import annotations

from contextlib import suppress

import kombu
import pytest

from tests.support.inbox import declare
from tests.support.lost_replies import lose_the_replies
from tests.support.machine_time import machine_time
from tests.support.stored import keys_of

batches = pytest.importorskip("kombu.exceptions", reason="kombu 5.6 has no batches")
if not hasattr(batches, "BatchPublishError"):
    pytest.skip("kombu 5.6 has no batches", allow_module_level=True)


@pytest.fixture
def producer(connection):
    return kombu.Producer(connection.channel())


def bodies(channel, queue):
    found = []
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        found.append(message.payload)
    return found


def evalshas(client):
    return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_a_hundred_messages_are_one_call_and_stay_in_order(producer, redis_client):
    declare(producer.channel, "q")
    producer.publish("warm", routing_key="q")
    before = evalshas(redis_client)
    with producer.batch():
        for number in range(100):
            producer.publish(number, routing_key="q")
    assert evalshas(redis_client) == before + 1
    assert bodies(producer.channel, "q") == ["warm", *range(100)]


def test_nothing_is_sent_before_the_block_ends_or_the_batch_is_full(producer):
    declare(producer.channel, "q")
    with producer.batch(max_size=10) as batch:
        for number in range(9):
            producer.publish(number, routing_key="q")
        assert producer.channel.queue_sizes("q").ready == 0
        producer.publish(9, routing_key="q")
        assert producer.channel.queue_sizes("q").ready == 10
        producer.publish(10, routing_key="q")
        batch.flush()
        assert producer.channel.queue_sizes("q").ready == 11


def test_a_block_that_raises_publishes_nothing_of_what_waits(producer):
    declare(producer.channel, "q")
    with suppress(ZeroDivisionError), producer.batch():
        producer.publish(1, routing_key="q")
        raise ZeroDivisionError
    assert bodies(producer.channel, "q") == []
    producer.publish(2, routing_key="q")
    assert bodies(producer.channel, "q") == [2]


def test_priorities_hold_within_a_batch(producer):
    declare(producer.channel, "q")
    with producer.batch():
        for number, priority in enumerate([0, 9, 5, 9, 0]):
            producer.publish(number, routing_key="q", priority=priority)
    assert bodies(producer.channel, "q") == [1, 3, 2, 0, 4]


def test_several_queues_and_the_order_in_each(producer):
    for queue in "abc":
        declare(producer.channel, queue)
    with producer.batch():
        for number in range(350):
            producer.publish(number, routing_key="abc"[number % 3])
    for place, queue in enumerate("abc"):
        assert bodies(producer.channel, queue) == list(range(place, 350, 3))


def test_messages_that_need_more_keep_their_place(producer):
    """Delayed, expiring, deduplicated, large and routed ones are published by themselves, behind those that wait."""
    channel = producer.channel
    declare(channel, "q")
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind("q", "x", "k.*")
    with producer.batch():
        producer.publish("first", routing_key="q")
        producer.publish("routed", exchange="x", routing_key="k.1")
        producer.publish("expires", routing_key="q", expiration=600)
        producer.publish("between", routing_key="q")
        producer.publish("unique", routing_key="q", headers={"x-deduplication-id": "1"})
        producer.publish("unique", routing_key="q", headers={"x-deduplication-id": "1"})
        producer.publish("x" * 1_100_000, routing_key="q")
        producer.publish("later", routing_key="q", headers={"x-delay": 600_000})
        producer.publish("last", routing_key="q")
    assert channel.queue_sizes("q").delayed == 1
    found = [body if len(body) < 100 else "large" for body in bodies(channel, "q")]
    assert found == ["first", "routed", "expires", "between", "unique", "large", "last"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 100, "x-overflow": "reject-publish"},
        {"x-message-ttl": 600_000},
        {"x-single-active-consumer": True},
        {"x-max-priority": 5},
    ],
)
def test_queues_of_all_kinds_take_batches(producer, arguments):
    declare(producer.channel, "q", arguments=arguments)
    with producer.batch():
        for number in range(20):
            producer.publish(number, routing_key="q", priority=9)
    assert producer.channel.queue_sizes("q").ready == 20


def test_events_of_a_batch_are_written(connect, redis_client):
    producer = kombu.Producer(connect(event_log=True).channel())
    declare(producer.channel, "q")
    with producer.batch():
        for number in range(5):
            producer.publish(number, routing_key="q")
    assert redis_client.xlen(keys_of("q").events) == 5


def test_a_full_queue_refuses_the_rest_and_the_error_says_how_many(producer):
    declare(producer.channel, "q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    declare(producer.channel, "other")
    with producer.batch() as batch:
        for number in range(5):
            producer.publish(number, routing_key="q")
        producer.publish("fits", routing_key="other")
        with pytest.raises(batches.BatchPublishError, match="2 of 6 messages"):
            batch.flush()
    assert bodies(producer.channel, "q") == [0, 1, 2]
    assert bodies(producer.channel, "other") == ["fits"]


def test_a_queue_that_was_deleted_by_others_comes_back(producer, connect):
    declare(producer.channel, "q")
    producer.publish("known", routing_key="q")
    other = connect().channel()
    other.queue_delete("q")
    with producer.batch():
        producer.publish(1, routing_key="q")
        producer.publish(2, routing_key="q")
    assert bodies(producer.channel, "q") == [1, 2]


def test_the_scripts_of_the_server_may_be_flushed(producer, redis_client):
    declare(producer.channel, "q")
    for start in (0, 3):
        with producer.batch():
            for number in range(start, start + 3):
                producer.publish(number, routing_key="q")
        redis_client.script_flush()
    assert bodies(producer.channel, "q") == list(range(6))


@pytest.mark.parametrize("arrived", [True, False])
def test_a_batch_whose_reply_is_lost_is_stored_once(producer, monkeypatch, arrived):
    declare(producer.channel, "q")
    producer.publish("before", routing_key="q")
    lose_the_replies(monkeypatch, arrived=arrived)
    with producer.batch():
        for number in range(5):
            producer.publish(number, routing_key="q")
    assert bodies(producer.channel, "q") == ["before", *range(5)]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_batch_with_a_duplicate_whose_reply_is_lost_is_stored_once(producer, monkeypatch, arrived):
    channel, found = producer.channel, []
    declare(channel, "q")

    def send(*names):
        batch = channel.create_publish_batch(10, lambda _, duplicate_of: found.append(duplicate_of is not None))
        for name in names:
            headers = {"x-deduplication-id": name} if name.startswith("id") else {}
            batch.publish(channel.prepare_message(name, headers=headers), "", "q")
        batch.flush()
        batch.close()

    send("id 1")
    lose_the_replies(monkeypatch, arrived=arrived)
    send("id 1", "id 2", "a", "b")
    assert found == [False, True, False, False, False]
    assert bodies(channel, "q") == ["id 1", "id 2", "a", "b"]


def test_a_message_may_be_changed_after_it_was_published(producer):
    declare(producer.channel, "q", arguments={"x-message-ttl": 600_000})
    headers = {"n": [1]}
    with producer.batch():
        producer.publish("x", routing_key="q", headers=headers)
        headers["n"].append(2)
    assert producer.channel.basic_get("q").headers["n"] == [1]


def test_a_refused_call_is_not_stored_by_the_next_one_of_its_queue(producer, redis_client, monkeypatch):
    """A call of the same write that is stored says nothing about the one before it."""
    declare(producer.channel, "q")
    producer.publish("known", routing_key="q", priority=5)
    producer.channel.queue_purge("q")
    # As another process leaves it that has deleted and declared it again.
    redis_client.hset("meta:{q}", "id", "77")
    lose_the_replies(monkeypatch, arrived=True)
    with producer.batch():
        producer.publish("depends on the record", routing_key="q", priority=5)
        producer.publish("plain", routing_key="q")
        producer.publish("plain too", routing_key="q")
    assert sorted(bodies(producer.channel, "q")) == ["depends on the record", "plain", "plain too"]


def test_a_queue_that_blocks_is_waited_for_once(connect):
    producer = kombu.Producer(connect(publish_timeout=0.5).channel())
    declare(producer.channel, "q", arguments={"x-max-length": 2, "x-overflow": "block"})
    began = machine_time()
    with producer.batch() as batch:
        for number in range(50):
            producer.publish(number, routing_key="q")
        with pytest.raises(batches.BatchPublishError, match="48 of 50 messages"):
            batch.flush()
    assert machine_time() - began < 10
    assert bodies(producer.channel, "q") == [0, 1]


def test_batches_that_are_confirmed_leave_nothing_behind(producer, redis_client):
    declare(producer.channel, "q")
    before = set(redis_client.keys("producer:*"))
    for number in range(20):
        with producer.batch():
            producer.publish(number, routing_key="q")
    assert bodies(producer.channel, "q") == [*range(20)]
    assert set(redis_client.keys("producer:*")) == before
