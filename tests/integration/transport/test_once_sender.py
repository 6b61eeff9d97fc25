"""What pipelines send: once by its identity, and as fast as a bounded queue lets them."""

from __future__ import annotations

import threading
import time

import kombu
import pytest

from celery_redis_plus.errors import PublishRefused
from celery_redis_plus.events import read_entry
from celery_redis_plus.keys import Keys
from celery_redis_plus.transport.once_sender import OnceSender


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
    with OnceSender(broker_url) as first, OnceSender(broker_url) as second:
        assert first.send("once", "a", b'"1"')
        assert not first.send("once", "a", b'"1"')
        assert not second.send("once", "a", b'"1"')
        assert second.send("once", "b", b'"2"')
    with kombu.Connection(broker_url) as connection, connection.SimpleQueue("once") as queue:
        assert queue.qsize() == 2


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
        for number in range(3):
            assert sender.send("bounded", str(number), b"1")
        with pytest.raises(PublishRefused):
            sender.send("bounded", "4", b"1")
        assert bounded(1) == [1]
        assert sender.send("bounded", "4", b"1"), "a refused message is not known"
