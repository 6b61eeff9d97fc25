"""kombu's own classes on our transport, as users write them."""

from __future__ import annotations

import queue as stdlib_queue
import socket
import threading
import time

import kombu
import pytest
from kombu.common import maybe_declare
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pools import connections, producers

from tests.support.inbox import Inbox, declare, publish
from tests.support.lost_replies import LostReplies
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


def test_simple_queue(connection):
    queue = connection.SimpleQueue("simple")
    for number in range(3):
        queue.put({"number": number})
    assert len(queue) == 3
    message = queue.get(timeout=5)
    assert message.payload == {"number": 0}
    message.ack()
    assert queue.get_nowait().payload == {"number": 1}
    assert queue.get(block=False).payload == {"number": 2}
    with pytest.raises(queue.Empty):
        queue.get_nowait()
    with pytest.raises(stdlib_queue.Empty):
        queue.get(timeout=0.05)
    queue.put("x")
    assert queue.clear() == 1
    queue.close()


def test_llen_counts_all_that_needs_a_worker(channel):
    assert channel.client.llen("q") == 0
    publish(channel, "q", "held", "ready")
    publish(channel, "q", "later", headers={"x-delay": 3_600_000})
    assert channel.basic_get("q")
    assert channel.client.llen("q") == 3


def test_simple_buffer_settles_by_itself(connection):
    buffer = connection.SimpleBuffer("buffer")
    buffer.put("x")
    assert buffer.get(timeout=5).payload == "x"
    buffer.close()


def test_get_nowait_directly_after_put(connection):
    queue = connection.SimpleQueue("simple")
    for number in range(50):
        queue.put(number)
        message = queue.get_nowait()
        assert message.payload == number
        message.ack()
    queue.close()


class Worker(ConsumerMixin):
    def __init__(self, connection, names):
        self.connection = connection
        self.queues = [kombu.Queue(name, durable=True) for name in names]
        self.bodies = []

    def get_consumers(self, consumer_class, channel):
        return [consumer_class(self.queues, callbacks=[self.take], accept=["json"], prefetch_count=2)]

    def take(self, body, message):
        self.bodies.append(body)
        message.ack()


def test_consumer_mixin_survives_cut_connections(connect, redis_client):
    worker = Worker(connect(), ["a", "b"])
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        publisher = connect().channel()
        for turn in range(4):
            publish(publisher, "a", turn)
            publish(publisher, "b", turn)
            wait_until(lambda turn=turn: worker.bodies.count(turn) == 2, timeout_s=15)
            redis_client.client_kill_filter(_type="normal", skipme=True)
            publisher = connect().channel()
    finally:
        worker.should_stop = True
        running.join(timeout=15)
    assert not running.is_alive()
    assert sorted(worker.bodies) == sorted([*range(4)] * 2)


def test_request_and_reply_with_consumer_producer_mixin(connect):
    class Server(ConsumerProducerMixin):
        def __init__(self, connection):
            self.connection = connection

        def get_consumers(self, consumer_class, channel):
            return [consumer_class([kombu.Queue("rpc", durable=True)], on_message=self.answer, accept=["json"])]

        def answer(self, message):
            asked = message.properties
            self.producer.publish(
                message.payload * 2, routing_key=asked["reply_to"], correlation_id=asked["correlation_id"], retry=True
            )
            message.ack()

    server = Server(connect())
    running = threading.Thread(target=server.run)
    running.start()
    try:
        client = connect().channel()
        replies = Inbox(client, kombu.Queue("answers", exclusive=True, auto_delete=True), no_ack=True)
        publish(client, "rpc", 21, reply_to="answers", correlation_id="c1")
        assert replies.drain(1) == [42]
        assert replies.messages[0].properties["correlation_id"] == "c1"
    finally:
        server.should_stop = True
        running.join(timeout=15)


def test_producer_with_retry_publishes_once_over_a_cut_connection(connect, redis_client):
    connection = connect()
    producer = kombu.Producer(connection)
    declare(connection.default_channel, "q")
    producer.publish("before", routing_key="q", retry=True)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    producer.publish("after", routing_key="q", retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
    assert Inbox(connect().channel(), "q").rest() == ["before", "after"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_publish_whose_reply_is_lost_is_retried_and_stays_one(connect, lost, monkeypatch):
    """The server has it, the publisher does not know."""
    connection = connect()
    declare(connection.default_channel, "q")
    replies = LostReplies(monkeypatch)
    replies.lose(lost)
    producer = kombu.Producer(connection)
    producer.publish("once", routing_key="q", retry=True, retry_policy={"max_retries": 5, "interval_start": 0})
    producer.publish("next", routing_key="q", retry=True)
    monkeypatch.undo()
    assert replies.lost == lost
    assert Inbox(connect().channel(), "q").rest() == ["once", "next"]


def test_a_properties_dict_that_is_used_again_is_another_message(channel):
    declare(channel, "q")
    for body in ("one", "two"):
        message = channel.prepare_message(body, properties={})
        for _ in range(2):
            channel.basic_publish(message, routing_key="q")
    assert channel.queue_sizes("q").ready == 4


def test_pools(broker_url, connect):
    connection = connect()
    with connections[connection].acquire(block=True) as pooled, producers[connection].acquire(block=True) as producer:
        declare(pooled.default_channel, "q")
        producer.publish("x", routing_key="q")
        assert pooled.default_channel.basic_get("q", no_ack=True).payload == "x"
    kombu.pools.reset()


def test_drain_events_returns_after_one_message(channel):
    inbox = Inbox(channel, "q")
    publish(channel, "q", 1, 2, 3)
    for count in (1, 2, 3):
        assert inbox.pump(5)
        assert len(inbox.messages) == count
    assert not inbox.pump(0.01)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
def test_drain_events_gives_up_after_its_timeout(connection, timeout):
    Inbox(connection.channel(), "q")
    start, by_machine = time.monotonic(), machine_time()
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=timeout)
    assert time.monotonic() - start >= timeout
    assert machine_time() - by_machine < timeout + 0.5


def test_drain_events_with_timeout_zero_takes_what_is_there(connection):
    channel = connection.channel()
    inbox = Inbox(channel, "q")
    publish(channel, "q", 1, 2)
    assert wait_until(lambda: inbox.pump(0))
    assert inbox.pump(0)
    assert not inbox.pump(0)


def test_drain_events_without_timeout_waits_for_a_message(connect):
    inbox = Inbox(connect().channel(), "q")
    other = connect().channel()
    later = threading.Timer(0.2, publish, (other, "q", "hello"))
    later.start()
    inbox.connection.drain_events()
    later.join()
    assert inbox.bodies == ["hello"]


def test_basic_get_on_an_empty_queue_is_none(channel):
    declare(channel, "q")
    assert channel.basic_get("q") is None
    assert kombu.Queue("q", durable=True)(channel).get() is None


def test_a_queue_and_an_exchange_that_were_deleted_are_declared_anew(channel):
    queue = kombu.Queue("q", kombu.Exchange("e"), routing_key="k", channel=channel)
    for _ in range(2):
        maybe_declare(queue, channel)
        kombu.Producer(channel).publish("x", exchange="e", routing_key="k")
        assert channel.queue_sizes("q").ready == 1
        queue.delete()
        queue.exchange.delete()


def test_messages_without_a_hash_do_not_hide_those_behind_them(channel, redis_client):
    """A tag whose hash was lost, by eviction for instance, is dropped and counted."""
    declare(channel, "q")
    redis_client.zadd("queue:{q}", {f"0000000000{number}.1": number for number in range(3)})
    publish(channel, "q", "alive")
    message = channel.basic_get("q")
    assert message is not None
    assert message.payload == "alive"
    assert redis_client.hget("meta:{q}", "vanished") == b"3"


@pytest.mark.parametrize("envelope", [b"", b"garbage", b"{}", b"[]", b"\xff", b'{"properties": 1}'])
def test_a_message_that_cannot_be_read_ends_no_consumer_and_is_kept(channel, redis_client, envelope):
    inbox = Inbox(channel, "q")
    for number in range(2):
        publish(channel, "q", "bad")
        ((tag, _),) = redis_client.zrange("queue:{q}", 0, 0, withscores=True)
        redis_client.hset(b"message:{q}:" + tag, "payload", envelope + b"\nbody")
        publish(channel, "q", number)
        if number:
            assert channel.basic_get("q", no_ack=True).payload == number
        else:
            assert inbox.drain(1) == [0]
            inbox.cancel()
    wait_until(lambda: redis_client.zcard("dead:{q}") == 2)
    assert channel.queue_sizes("q").unacked == 0


def test_an_empty_claim_does_not_hang_a_consumer(connect, redis_client):
    connection = connect(polling_interval=0.3)
    inbox = Inbox(connection.channel(), "q")
    assert inbox.rest(0.05) == []
    # Another client takes the wakeup of a message: the consumer checks its queues after `polling_interval`.
    publish(connect().channel(), "q", "found")
    redis_client.delete("wakeup:{q}")
    assert inbox.drain(1, timeout_s=3) == ["found"]


def test_consumers_are_cancelled_and_started_again(channel):
    inbox = Inbox(channel, "q")
    publish(channel, "q", 1)
    inbox.drain(1)
    inbox.cancel()
    publish(channel, "q", 2)
    with pytest.raises(TimeoutError):
        channel.connection.client.drain_events(timeout=0.1)
    inbox.consumer.consume()
    assert inbox.drain(2) == [1, 2]


def test_a_queue_can_be_added_to_a_waiting_consumer_from_another_thread(connect):
    inbox = Inbox(connect().channel(), "first")
    publisher = connect().channel()

    def add():
        inbox.consumer.add_queue(kombu.Queue("second", durable=True))
        inbox.consumer.consume()
        publish(publisher, "second", "hello")

    adding = threading.Timer(0.2, add)
    adding.start()
    assert inbox.drain(1) == ["hello"]
    adding.join()


def test_clone_and_default_channel(connect):
    connection = connect()
    other = connection.clone()
    declare(connection.default_channel, "q")
    publish(other.default_channel, "q", "x")
    assert connection.default_channel.basic_get("q", no_ack=True).payload == "x"
    other.release()


def test_connected_tells_the_truth(connect, redis_client):
    connection = connect()
    assert connection.connected
    connection.close()
    assert not connection.connected


def test_as_uri_hides_the_password(broker_url):
    connection = kombu.Connection("redisplus://user:secret@localhost:6379/0")
    assert "secret" not in connection.as_uri()
    assert "secret" in connection.as_uri(include_password=True)
