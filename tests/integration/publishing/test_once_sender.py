"""What pipelines send: once by its identity, and as fast as a bounded queue lets them."""

from __future__ import annotations

import threading
import time

import kombu
import pytest

from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.errors import InvalidArgument, InvalidPriority, PublishRefused
from celery_redis_plus.events import read_entry
from celery_redis_plus.keys import Keys
from celery_redis_plus.testing import EmbeddedServer
from celery_redis_plus.transport import once_sender
from celery_redis_plus.transport.once_sender import OnceSender
from tests.support.lost_replies import lose_the_replies
from tests.support.sentinels import sentinel_deployment


@pytest.fixture
def bounded(broker_url):
    """A queue for three messages that refuses more; returns a way to take some out."""
    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    with kombu.Connection(broker_url) as connection:
        queue = kombu.Queue("bounded", durable=True, queue_arguments=arguments)(connection.default_channel)
        queue.declare()

        def take(count):
            taken = []
            while len(taken) < count:
                message = queue.get(no_ack=True)
                if message is None:
                    time.sleep(0.01)
                else:
                    taken.append(message.payload)
            return taken

        yield take


def test_an_identity_is_stored_once_by_whomever_it_is_sent(broker_url):
    with OnceSender(broker_url) as first:
        first.send("once", "a", b'"1"')
        first.send("once", "a", b'"1"')
    with OnceSender(broker_url, batch=1) as second:
        second.send("once", "a", b'"1"')
        second.send("once", "b", b'"2"')
    assert [(sender.stored, sender.known) for sender in (first, second)] == [(1, 1), (1, 1)]
    with kombu.Connection(broker_url) as connection, connection.SimpleQueue("once") as queue:
        assert queue.qsize() == 2


def test_an_identity_is_remembered_for_a_week(broker_url, redis_client):
    with OnceSender(broker_url) as sender:
        sender.send("once", "a", b"1")
    [identity] = redis_client.keys("dedup:*")
    assert 600_000_000 < redis_client.pttl(identity) <= 604_800_000


def test_a_task_id_that_is_no_utf_8_keeps_no_other_message_from_being_sent(broker_url):
    with OnceSender(broker_url) as sender:
        for number, task in enumerate(("a", "\ud800x", "b")):
            sender.send("once", str(number), b"1", headers={"id": task, "task": "t"})
        sender.send("once", "1", b"1", headers={"id": "\ud800x", "task": "t"})
    assert (sender.stored, sender.known) == (3, 1)


@pytest.mark.parametrize("scheme", ["REDIS", "valkey", "redisplus", "redis+socket", "unix"])
def test_it_takes_each_url_that_an_app_takes(scheme, tmp_path):
    socket = tmp_path / "s"
    with EmbeddedServer(config={"unixsocket": str(socket)}) as server:
        at = f"{socket}?virtual_host=0" if scheme in {"redis+socket", "unix"} else f"127.0.0.1:{server.port}/0"
        with OnceSender(f"{scheme}://{at}") as sender:
            sender.send("q", "a", b"1")
        assert sender.stored == 1


@pytest.mark.parametrize("scheme", ["redis+sentinel", "sentinel"])
def test_it_takes_the_url_of_sentinels(scheme):
    with sentinel_deployment(replicas=0, sentinels=1) as deployment:
        hosts = deployment.url(0).partition("://")[2]
        with OnceSender(f"{scheme}://{hosts}") as sender:
            sender.send("q", "a", b"1")
        assert sender.stored == 1


def test_the_events_of_a_message_name_the_one_that_it_is_made_from(broker_url, redis_client):
    with kombu.Connection(broker_url, transport_options={"event_log": True}) as connection:
        kombu.Queue("logged", durable=True)(connection.default_channel).declare()
    with OnceSender(broker_url) as sender:
        sender.send("logged", "a", b"1", source_id="0190abc")
        sender.send("logged", "b", b"2")
    keys = Keys("").queue("logged")
    found = [read_entry([part for pair in fields.items() for part in pair]) for _, fields in redis_client.xrange(keys.events)]
    assert [(event.event, event.source_id) for event in found] == [("published", "0190abc"), ("published", None)]
    for tag in redis_client.zrange(keys.ready, 0, -1):
        assert b"source_id" not in redis_client.hget(keys.message + tag, "payload"), "it is no property of the message"


def test_a_full_queue_holds_the_sender_back_and_nothing_is_lost(bounded, broker_url):
    def send_all():
        with OnceSender(broker_url, patience_s=60) as sender:
            for number in range(20):
                sender.send("bounded", str(number), str(number).encode())

    thread = threading.Thread(target=send_all)
    thread.start()
    taken = bounded(20)
    thread.join()

    assert taken == list(range(20))


def test_a_queue_that_stays_full_is_an_error_after_the_patience(bounded, broker_url):
    with OnceSender(broker_url, patience_s=0.1) as sender:
        for number in range(5):
            sender.send("bounded", str(number), b"1")
        with pytest.raises(PublishRefused):
            sender.flush()
        assert sender.stored == 3
        assert bounded(2) == [1, 1]
    assert (sender.stored, sender.known) == (5, 0), "a refused message is not known"


def test_a_sender_that_a_full_queue_holds_back_tells_of_it_at_growing_pauses(bounded, broker_url, monkeypatch, caplog):
    """A replay into a full queue waited ten minutes without a word."""

    class Waiting:
        now_s = 0.0

        def monotonic(self):
            return self.now_s

        def sleep(self, seconds):
            self.now_s += seconds

    monkeypatch.setattr(once_sender, "time", Waiting())
    with OnceSender(broker_url, patience_s=29) as sender:
        for number in range(5):
            sender.send("bounded", str(number), b"1")
        with pytest.raises(PublishRefused):
            sender.flush()
        assert bounded(2) == [1, 1]
    told = [record.getMessage() for record in caplog.records if record.name == once_sender.__name__]
    assert told == [
        "queue 'bounded' is full: x-max-length is 3, it has 3; the message is not in it; "
        f"2 message(s) wait for it, for up to {left} s more"
        for left in (27, 23, 15)
    ]


def test_the_patience_begins_anew_with_each_message_that_a_full_queue_takes(bounded, broker_url, monkeypatch):
    class SlowConsumer:
        """The time, in which a consumer takes a message with each pause of the sender."""

        now_s = 0.0

        def monotonic(self):
            return self.now_s

        def sleep(self, _):
            self.now_s += 40.0
            taken.extend(bounded(1))

    taken, slow = [], SlowConsumer()
    monkeypatch.setattr(once_sender, "time", slow)
    with OnceSender(broker_url, patience_s=60) as sender:
        for number in range(7):
            sender.send("bounded", str(number), str(number).encode())
    assert (sender.stored, slow.now_s) == (7, 160.0)
    assert taken + bounded(3) == list(range(7))


def test_a_queue_that_makes_dead_letters_of_what_it_refuses_is_not_asked_again(channel, broker_url, redis_client):
    limits = {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "d",
    }
    channel.queue_declare("q", durable=True, arguments=limits)
    sender = OnceSender(broker_url, patience_s=60)
    for number in range(3):
        sender.send("q", str(number), b"1")
    with pytest.raises(InvalidArgument, match="'reject-publish-dlx', where nothing can wait"):
        sender.flush()
    sender.close()
    assert redis_client.zcard("dlx_outbox:{q}") == 1


def test_no_message_overtakes_one_that_a_full_queue_refused(bounded, broker_url, monkeypatch):
    """Also in the first batch, which does not know of the limits: room is made behind the refusal."""
    refused = []

    def to_queue(publisher, *arguments):
        try:
            return original(publisher, *arguments)
        except PublishRefused:
            if not refused:
                refused.append(None)
                taken.extend(bounded(3))
            raise

    taken, original = [], Publisher.to_queue
    monkeypatch.setattr(Publisher, "to_queue", to_queue)
    with OnceSender(broker_url) as sender:
        for number in range(6):
            sender.send("bounded", str(number), str(number).encode())
    assert refused
    assert taken + bounded(3) == list(range(6))


def evalshas(client):
    return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


@pytest.mark.parametrize("event_log", [False, True])
def test_a_hundred_messages_are_one_call_whatever_their_priorities(connect, broker_url, redis_client, event_log):
    kombu.Queue("once", durable=True)(connect(event_log=event_log).channel()).declare()
    with OnceSender(broker_url) as sender:
        for start in (0, 100, 100):
            before = evalshas(redis_client)
            for number in range(start, start + 100):
                sender.send("once", str(number), b"1", properties={"priority": number % 10})
            calls = evalshas(redis_client) - before
    assert calls == 1, "the first batch learns of the queue, and its events"
    assert (sender.stored, sender.known) == (200, 100)
    keys = Keys("").queue("once")
    assert redis_client.zcard(keys.ready) == 200
    assert redis_client.xlen(keys.events) == 200 * event_log


def test_messages_before_one_that_is_wrong_are_sent(broker_url, redis_client):
    sender = OnceSender(broker_url)
    for number in range(3):
        sender.send("once", str(number), b"1", properties={"priority": 300 if number == 2 else 0})
    with pytest.raises(InvalidPriority):
        sender.flush()
    assert sender.stored == redis_client.zcard(Keys("").queue("once").ready) == 2
    sender.close()


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_known_is_counted_although_a_reply_was_lost(broker_url, redis_client, monkeypatch, arrived):
    with OnceSender(broker_url) as sender:
        for number in range(0, 10, 2):
            sender.send("once", str(number), b"1")
        sender.flush()
        lose_the_replies(monkeypatch, arrived=arrived)
        for number in range(10):
            sender.send("once", str(number), b"1")
    assert (sender.stored, sender.known) == (10, 5)
    assert redis_client.zcard(Keys("").queue("once").ready) == 10


def test_batches_that_are_confirmed_leave_only_what_they_remember(connect, broker_url, redis_client):
    kombu.Queue("once", durable=True)(connect().channel()).declare()
    with OnceSender(broker_url) as sender:
        for number in (*range(20), *range(10, 30)):
            sender.send("once", str(number), b"1")
            if number == 19:
                sender.flush()
    assert (sender.stored, sender.known) == (30, 10)
    assert redis_client.keys("producer:*") == []
    assert len(redis_client.keys("dedup:*")) == 30
