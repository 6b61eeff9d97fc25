"""`x-overflow: block`: publishers wait for room."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack

import kombu
import pytest

from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.errors import PublisherBlocksItself, PublishTimedOut
from tests.support.inbox import Inbox, publish
from tests.support.machine_time import machine_time
from tests.support.publishers import PublishingProcess, PublishingThread, wake_only
from tests.support.waiting import wait_until


@pytest.fixture
def waiting(redis_client):
    """Wait until so many publishers stand in the queue's line."""

    def wait(count, queue="q"):
        wait_until(lambda: redis_client.zcard(f"waiting_publishers:{{{queue}}}") == count, message=f"{count} waiting publishers")

    return wait


@pytest.fixture
def only_woken(monkeypatch):
    wake_only(monkeypatch)


def cancel_first(channel):
    messages = Messages(channel.session.commands, channel.session.keys, dead_letter_max=10)
    tags = channel.session.commands.command("ZRANGE", channel.session.keys.queue("q").ready, 0, 0)
    assert messages.cancel("q", [tags[0].decode()])


@pytest.mark.parametrize(
    ("limits", "make_room"),
    [
        ({"max_length": 1}, lambda channel: channel.basic_get("q")),
        ({"max_length": 1}, lambda channel: channel.queue_purge("q")),
        ({"max_pending": 1}, lambda channel: channel.basic_get("q").ack()),
        ({"max_pending": 1}, lambda channel: channel.basic_get("q").reject()),
        ({"max_pending": 1}, lambda channel: channel.queue_purge("q")),
        ({"max_length_bytes": 500}, lambda channel: channel.basic_get("q").ack()),
        ({"max_length_bytes": 500}, lambda channel: channel.queue_purge("q")),
        ({"max_length": 1}, cancel_first),
        ({"max_length_bytes": 500}, cancel_first),
    ],
)
def test_a_blocked_publisher_is_woken_by_whatever_makes_room(  # noqa: PLR0917 - fixtures
    bounded, channel, broker_url, waiting, limits, make_room, only_woken, redis_client
):  # fmt: skip
    queue = bounded(**limits, overflow="block")
    publish(channel, queue, "x" * 200)
    with PublishingThread(broker_url, queue, ["y" * 200]) as publisher:
        waiting(1)
        make_room(channel)
        publisher.join()
        assert publisher.errors == []
    assert redis_client.keys("waiting_publishers:*") == []


def test_one_large_message_makes_room_for_all_who_fit(bounded, channel, broker_url, waiting, only_woken, redis_client):
    """An ack wakes one publisher, which wakes the next one."""
    queue = bounded(max_length_bytes=3000, overflow="block")
    publish(channel, queue, "x" * 2500)
    with (
        PublishingThread(broker_url, queue, ["y" * 300]) as first,
        PublishingThread(broker_url, queue, ["y" * 300]) as second,
        PublishingThread(broker_url, queue, ["y" * 300]) as third,
    ):
        waiting(3)
        channel.basic_get(queue).ack()
        for publisher in (first, second, third):
            publisher.join()
            assert publisher.errors == []
    assert channel.queue_sizes(queue).ready == 3
    assert redis_client.keys("waiting_publishers:*") == []


def test_a_message_that_expires_makes_room(bounded, channel, broker_url, only_woken):
    queue = bounded(max_length=1, overflow="block", message_ttl=300)
    channel.session.service.start()
    # Somebody has to sweep.
    consumer = Inbox(channel, "other")
    publish(channel, queue, 1)
    with PublishingThread(broker_url, queue, [2]) as publisher:
        publisher.join()
        assert publisher.errors == []
    consumer.consumer.cancel()


def test_a_publisher_that_is_not_served_in_time_gets_an_error_and_leaves_nothing(bounded, channel, connect, redis_client, record):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, 1)
    impatient = connect(publish_timeout=0.3).channel()
    with pytest.raises(PublishTimedOut, match=r"'q' stayed full for 0.3 s .*publish_timeout"):
        publish(impatient, queue, 2)
    assert redis_client.keys("waiting_publishers:*") == []
    assert redis_client.zcard("queue:{q}") == 1
    assert record()["blocked"] == "1"


def test_waiting_publishers_are_served_in_the_order_in_which_they_came(bounded, channel, broker_url, waiting):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, "first")
    with ExitStack() as stack:
        publishers = []
        for number in range(5):
            publishers.append(stack.enter_context(PublishingThread(broker_url, queue, [f"{number}a", f"{number}b"])))
            waiting(number + 1)
        inbox = Inbox(channel, queue_of(queue, {"x-max-length": 1, "x-overflow": "block"}), prefetch=1)
        order = inbox.drain(11)
        for publisher in publishers:
            publisher.join()
    assert order[:6] == ["first", *(f"{number}a" for number in range(5))]
    assert sorted(order[6:]) == [f"{number}b" for number in range(5)]


def queue_of(name, arguments):
    return kombu.Queue(name, durable=True, queue_arguments=arguments)


def test_a_newcomer_does_not_take_the_room_of_one_who_waits(bounded, channel, connect, broker_url, waiting):
    queue = bounded(max_length=2, overflow="block")
    publish(channel, queue, 1, 2)
    newcomer = connect(publish_timeout=0).channel()
    with PublishingThread(broker_url, queue, [3]) as publisher:
        waiting(1)
        claimed = channel.basic_get(queue)
        publisher.join()
        with pytest.raises(PublishTimedOut):
            publish(newcomer, queue, 4)
        claimed.ack()
    assert channel.queue_sizes(queue).ready == 2


def test_a_place_for_each_of_those_who_wait_is_none_for_a_newcomer(bounded, channel, connect, broker_url, waiting, only_woken):
    queue = bounded(max_length=2, overflow="block")
    publish(channel, queue, 1, 2)
    newcomer = connect(publish_timeout=0).channel()
    with PublishingThread(broker_url, queue, [3]) as publisher:
        waiting(1)
        # A place is free, and its publisher does not hear of it yet.
        channel.session.commands.command("ZPOPMIN", channel.session.keys.queue(queue).ready)
        with pytest.raises(PublishTimedOut):
            publish(newcomer, queue, 4)
        channel.queue_purge(queue)
        publisher.join()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_nobody_waits_behind_a_publisher_that_is_killed_or_frozen(bounded, channel, broker_url, waiting, signal_number):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, 1)
    with PublishingProcess(broker_url, queue, 1, "dead") as dead:
        waiting(1)
        with PublishingThread(broker_url, queue, [2]) as publisher:
            waiting(2)
            os.kill(dead.pid, signal_number)
            channel.basic_get(queue).ack()
            publisher.join(15)
            assert publisher.errors == []
    assert channel.basic_get(queue).payload == 2


def test_a_lost_connection_while_waiting_is_retried_by_kombu_and_stores_one_message(
    bounded, channel, connect, waiting, redis_client
):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, 1)

    def cut():
        for client in redis_client.client_list():
            if "capacity" in client["name"]:
                redis_client.client_kill(client["addr"])
                return True
        return False

    connection = connect()
    producer = kombu.Producer(connection.channel())
    thread = threading.Thread(target=lambda: producer.publish(2, routing_key=queue, retry=True), daemon=True)
    thread.start()
    waiting(1)
    wait_until(cut)
    channel.basic_get(queue).ack()
    thread.join(15)
    assert not thread.is_alive()
    assert channel.basic_get(queue).payload == 2
    assert channel.basic_get(queue) is None


def test_threads_of_one_connection_wait_apart_and_do_not_keep_others_from_publishing(bounded, channel, connection, waiting):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, "full")
    channels = [connection.channel() for _ in range(3)]
    threads = [threading.Thread(target=publish, args=(one, queue, number), daemon=True) for number, one in enumerate(channels)]
    for number, thread in enumerate(threads):
        thread.start()
        waiting(number + 1)
    bounded("other")
    publish(channel, "other", "at once")
    assert channel.queue_sizes("other").ready == 1
    for _ in range(4):
        message = wait_until(lambda: channel.basic_get(queue))
        message.ack()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.slow
def test_what_a_waiting_publisher_holds_stays_its_own(bounded, connect, redis_client):
    """It waits for longer than the visibility timeout; its heartbeats go on."""
    channel = connect(visibility_timeout=3, publish_timeout=4.5).channel()
    full = bounded("full", max_length=1, overflow="block")
    publish(channel, full, "x")
    work = Inbox(channel, "work", ack=False)
    publish(channel, "work", "held")
    work.drain(1)
    other = connect(visibility_timeout=3)
    rival = Inbox(other.channel(), "work")
    with pytest.raises(PublishTimedOut):
        publish(channel, full, "y")
    rival.rest(0.5)
    assert rival.bodies == []
    (tag,) = redis_client.zrange("messages_index:{work}", 0, -1)
    assert redis_client.hget(b"message:{work}:" + tag, "claim") == b"1"
    work.messages[0].ack()
    wait_until(lambda: not redis_client.exists("messages_index:{work}"))


def test_the_queue_that_goes_away_lets_its_publishers_go(bounded, channel, broker_url, waiting):
    queue = bounded(max_length=1, overflow="block")
    publish(channel, queue, 1)
    with PublishingThread(broker_url, queue, [2]) as publisher:
        waiting(1)
        channel.queue_delete(queue)
        publisher.join()
        # As with any lasting queue that nobody has declared: its first message does.
        assert publisher.errors == []
    assert channel.basic_get(queue).payload == 2


def test_who_alone_consumes_a_full_queue_gets_an_error_instead_of_waiting_for_itself(bounded, channel, connection, redis_client):
    arguments = {"x-max-pending": 1, "x-overflow": "block"}
    queue = bounded(max_pending=1, overflow="block")
    publish(channel, queue, 1)
    errors = []

    def callback(_body, message):
        try:
            publish(channel, queue, 2)
        except PublisherBlocksItself as error:
            errors.append(str(error))
        message.ack()

    with kombu.Consumer(channel, [queue_of(queue, arguments)], callbacks=[callback]):
        wait_until(lambda: redis_client.zcard("consumers:{q}"))
        began = machine_time()
        connection.drain_events(timeout=10)
    assert machine_time() - began < 5
    assert "only this thread" in errors[0]
    assert redis_client.keys("waiting_publishers:*") == []


def test_who_shares_a_full_queue_with_others_waits_for_them(bounded, channel, connect, connection, redis_client):
    arguments = {"x-max-pending": 1, "x-overflow": "block"}
    queue = bounded(max_pending=1, overflow="block")
    publish(channel, queue, 1)
    other = connect()
    elsewhere = Inbox(other.channel(), queue_of(queue, arguments))
    wait_until(lambda: redis_client.zcard("consumers:{q}") == 1)
    patient = connect(publish_timeout=0.3).channel()
    errors = []

    def callback(_body, message):
        with pytest.raises(PublishTimedOut) as error:
            publish(patient, queue, 2)
        errors.append(error)
        message.ack()

    with kombu.Consumer(channel, [queue_of(queue, arguments)], callbacks=[callback]):
        wait_until(lambda: redis_client.zcard("consumers:{q}") == 2)
        connection.drain_events(timeout=10)
    assert len(errors) == 1
    elsewhere.consumer.cancel()
