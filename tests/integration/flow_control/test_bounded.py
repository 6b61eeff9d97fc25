"""Bounded queues: what counts, and what becomes of more."""

from __future__ import annotations

from contextlib import suppress

import kombu
import pytest

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.errors import QueueFull
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.invariants import violations
from tests.support.waiting import wait_until


def fill(channel, queue, *bodies, **properties):
    """Publish until the queue refuses; return how many it took."""
    taken = 0
    for body in bodies:
        try:
            publish(channel, queue, body, **properties)
        except QueueFull:
            break
        taken += 1
    return taken


def dead(channel, queue):
    return list(DeadLetters(channel.session.commands, channel.session.keys).all(queue))


def test_max_length_counts_ready_and_delayed_messages(bounded, channel):
    queue = bounded(max_length=3, overflow="reject-publish")
    publish(channel, queue, "later", headers={"x-delay": 60_000})
    assert fill(channel, queue, *range(5)) == 2
    taken = channel.basic_get(queue)
    assert fill(channel, queue, *range(5)) == 1, "an unacked message does not count"
    taken.ack()
    assert fill(channel, queue, *range(5)) == 0


def test_max_pending_counts_unacked_messages_too(bounded, channel):
    queue = bounded(max_pending=3, overflow="reject-publish")
    publish(channel, queue, "later", headers={"x-delay": 60_000})
    assert fill(channel, queue, *range(5)) == 2
    taken = channel.basic_get(queue)
    assert fill(channel, queue, *range(5)) == 0
    taken.ack()
    assert fill(channel, queue, *range(5)) == 1


def test_kombus_own_names_for_limits_hold(channel):
    queue = kombu.Queue("q", durable=True, max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    queue(channel).declare()
    publish(channel, "q", "x")
    with pytest.raises(QueueFull, match="x-max-length is 1"):
        publish(channel, "q", "y")


def test_the_error_names_queue_limit_and_content(bounded, channel):
    queue = bounded("orders", max_length=2, max_pending=3, overflow="reject-publish")
    assert fill(channel, queue, *range(5)) == 2
    with pytest.raises(QueueFull, match="'orders' is full: x-max-length is 2, it has 2"):
        publish(channel, queue, 1)
    for _ in range(2):
        channel.basic_get(queue)
    publish(channel, queue, 1)
    with pytest.raises(QueueFull, match="'orders' is full: x-max-pending is 3, it has 3"):
        publish(channel, queue, 1)


def test_max_length_bytes_counts_what_a_queue_holds_until_it_is_settled(bounded, channel, record, redis_client):
    queue = bounded(max_length_bytes=20_000, overflow="reject-publish")
    count = fill(channel, queue, *["x" * 1000] * 50)
    assert 10 < count < 20
    held = sum(redis_client.hstrlen(key, "payload") for key in redis_client.keys("message:*"))
    assert int(record()["bytes"]) == held <= 20_000
    with pytest.raises(QueueFull, match=f"x-max-length-bytes is 20000, it has {held}"):
        publish(channel, queue, "x" * 1000)
    first, second, third, fourth = (channel.basic_get(queue) for _ in range(4))
    assert fill(channel, queue, "x" * 1000) == 0
    first.ack()
    second.reject()
    third.requeue()
    wait_until(lambda: int(record()["bytes"]) == held * (count - 2) // count)
    channel.queue_purge(queue)
    wait_until(lambda: int(record()["bytes"]) == held // count)
    fourth.ack()
    wait_until(lambda: int(record()["bytes"]) == 0)
    assert fill(channel, queue, *["x" * 1000] * 50) == count


def test_a_large_body_counts_with_its_bytes_and_leaves_nothing_when_it_is_refused(bounded, channel, record, redis_client):
    queue = bounded(max_length_bytes=3_000_000, overflow="reject-publish")
    assert fill(channel, queue, *["x" * 1_200_000] * 5) == 2
    assert 2_400_000 < int(record()["bytes"]) < 2_402_000
    assert redis_client.keys("*staged*") == []
    channel.basic_get(queue).ack()
    wait_until(lambda: int(record()["bytes"]) < 1_202_000)
    assert fill(channel, queue, *["x" * 1_200_000] * 5) == 1


def test_drop_head_makes_dead_letters_of_the_oldest(bounded, channel, record):
    queue = bounded(max_length=3)
    publish(channel, queue, *range(5))
    assert [int(letter.body) for letter in dead(channel, queue)] == [0, 1]
    assert {letter.reason for letter in dead(channel, queue)} == {"maxlen"}
    assert Inbox(channel, kombu.Queue(queue, durable=True, queue_arguments={"x-max-length": 3})).drain(3) == [2, 3, 4]
    assert record()["dead_lettered"] == "2"


def test_drop_head_drops_delayed_messages_only_when_none_is_ready(bounded, channel):
    queue = bounded(max_length=2)
    publish(channel, queue, "later", headers={"x-delay": 60_000})
    publish(channel, queue, "a", "b")
    assert [letter.body for letter in dead(channel, queue)] == [b"a"]
    publish(channel, queue, "c", headers={"x-delay": 30_000})
    assert [letter.body for letter in dead(channel, queue)] == [b"a", b"b"]
    publish(channel, queue, "d", headers={"x-delay": 50_000})
    assert [letter.body for letter in dead(channel, queue)] == [b"a", b"b", b"c"]


def test_drop_head_never_drops_what_a_consumer_has(bounded, channel):
    queue = bounded(max_pending=2)
    publish(channel, queue, 1, 2)
    taken = [channel.basic_get(queue) for _ in range(2)]
    publish(channel, queue, 3)
    assert [letter.body for letter in dead(channel, queue)] == [b"3"]
    for message in taken:
        message.ack()


def test_drop_head_heeds_the_limit_in_bytes(bounded, channel, record):
    queue = bounded(max_length_bytes=5_000)
    for number in range(30):
        publish(channel, queue, str(number) + "x" * 700)
        assert int(record().get("bytes", 0)) <= 5_000
    assert channel.queue_sizes(queue).ready + len(dead(channel, queue)) == 30


def test_dropped_messages_go_to_the_dead_letter_exchange(bounded, channel, inbox):
    declare(channel, "graves")
    queue = bounded(max_length=1, dead_letter_exchange="", dead_letter_routing_key="graves")
    graves = inbox(channel, "graves")
    publish(channel, queue, 1, 2, 3)
    assert graves.drain(2) == [1, 2]
    assert graves.messages[0].headers["x-death"][0]["reason"] == "maxlen"


def test_reject_publish_dlx_refuses_and_keeps(bounded, channel, record):
    queue = bounded(max_length=1, overflow="reject-publish-dlx")
    publish(channel, queue, 1)
    with pytest.raises(QueueFull, match="among the dead letters"):
        publish(channel, queue, 2)
    with pytest.raises(QueueFull):
        publish(channel, queue, 3, headers={"x-delay": 60_000})
    assert [letter.body for letter in dead(channel, queue)] == [b"2", b"3"]
    assert (record()["rejected"], record()["dead_lettered"]) == ("2", "2")
    assert channel.queue_sizes(queue).ready == 1


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx", "block"])
def test_a_publisher_that_did_not_declare_the_queue_is_held_to_its_limits(bounded, connect, channel, overflow):
    queue = bounded(max_length=2, overflow=overflow)
    other = connect(publish_timeout=0).channel()
    fill(other, queue, *range(4))
    assert channel.queue_sizes(queue).ready == 2


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx", "block"])
def test_a_message_that_can_never_fit_is_refused_at_once_or_dies(bounded, connect, channel, overflow):
    queue = bounded(max_length_bytes=100, overflow=overflow)
    if overflow == "drop-head":
        publish(channel, queue, "x" * 500)
    else:
        with pytest.raises(QueueFull, match="x-max-length-bytes is 100, it has 0"):
            publish(channel, queue, "x" * 500)
    assert channel.queue_sizes(queue).ready == 0
    assert len(dead(channel, queue)) == (overflow in ("drop-head", "reject-publish-dlx"))


def test_a_transient_queue_says_that_what_it_drops_is_gone(channel, caplog, redis_client):
    declare(channel, "t", durable=False, auto_delete=True, arguments={"x-max-length": 1})
    publish(channel, "t", 1, 2)
    assert "queue 't' is full: 1 message(s)" in caplog.text
    assert "are gone" in caplog.text
    assert redis_client.hget("meta:{t}", "discarded") == b"1"


def test_a_requeued_message_comes_back_although_the_queue_is_full(bounded, channel):
    """It was admitted; the queue takes nothing new until it is below its limit."""
    queue = bounded(max_length=1, overflow="reject-publish")
    publish(channel, queue, 1)
    taken = channel.basic_get(queue)
    publish(channel, queue, 2)
    taken.requeue()
    wait_until(lambda: channel.queue_sizes(queue).ready == 2)
    assert fill(channel, queue, 3) == 0


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx", "drop-head"])
def test_what_a_cancelled_consumer_gives_back_passes_the_limit_and_no_publish_does(connection, channel, bounded, overflow):
    queue = bounded(max_length=5, overflow=overflow)
    publish(channel, queue, *range(5))
    taken: list[object] = []
    consumer = kombu.Consumer(
        channel, [kombu.Queue(queue, no_declare=True)], callbacks=[lambda _body, message: taken.append(message)]
    )
    consumer.qos(prefetch_count=3)
    consumer.consume()
    connection.drain_events(timeout=10)
    with suppress(QueueFull):
        publish(channel, queue, *range(5, 8))
    wait_until(lambda: channel.queue_sizes(queue).ready == 5)

    consumer.cancel()
    assert channel.queue_sizes(queue).ready == 5 + 3 - len(taken), "they belong to it already"

    with suppress(QueueFull):
        publish(channel, queue, "new")
    assert channel.queue_sizes(queue).ready == (5 if overflow == "drop-head" else 5 + 3 - len(taken))


def test_nothing_is_violated_by_what_limits_do(bounded, channel, redis_client):
    bounded("drop", max_length=2)
    bounded("dlx", max_length=2, overflow="reject-publish-dlx")
    bounded("bytes", max_length_bytes=1_000, max_pending=5)
    for queue in ("drop", "dlx", "bytes"):
        fill(channel, queue, *range(6))
        channel.basic_get(queue)
        fill(channel, queue, *range(6))
        fill(channel, queue, *range(3), headers={"x-delay": 60_000})
    assert violations(redis_client, Keys()) == []
