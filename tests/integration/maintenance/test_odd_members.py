"""What somebody else adds to the lists that all queues share harms no queue: names that none can have, records that are none."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.janitor import Janitor
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

KEYS = Keys()
#: No name, one that is too long, one whose bytes are no UTF-8, one with a line feed, one that looks like a key's tag.
NAMES = [b"", b"n" * 5000, b"\xff\xfe", b"two\nlines", b"}{", b"a b"]


def add_names(client):
    """Add odd names to each list of names."""
    past = int(time.time() * 1000) - 3_600_000
    for number, name in enumerate(NAMES):
        client.zadd(KEYS.queues, {name: past - number})
        client.zadd(KEYS.queues, {name + b"2": "+inf"})
        client.zadd(KEYS.queues, {name + b"3": -past})
        client.sadd(KEYS.always_swept, name)
        client.sadd(KEYS.event_logs, name)
        client.zadd(KEYS.tracks, {name: 1})
        client.hset(KEYS.exchanges, name, '{"type":"fanout","durable":true}')
        client.hset(KEYS.exchanges, name + b"2", b"\xff")
        client.hset(KEYS.binding("x"), name, "")


def add_processes(client):
    """Add records of processes that are none."""
    for number, record in enumerate((b"", b"x", b"{}", b"[]", b'{"queues": 5}', b"lost {}", b"lost x", b"\xff")):
        client.hset(KEYS.processes[0], f"odd{number}", record)
    client.zadd(KEYS.processes[1], {"odd": 1, "odd2": 9e15, b"\xff": 9e15})


@pytest.mark.parametrize("add", [add_names, add_processes])
def test_maintenance_and_operators_go_on(connect, redis_client, broker_url, caplog, add):
    channel = connect().channel()
    kombu.Queue("letters", durable=True)(channel).declare()
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters", "x-event-log": True}
    bound = kombu.Exchange("x", "direct", durable=True)
    news = kombu.Exchange("news", "fanout", durable=True)
    queues = [kombu.Queue("q", bound, "k", durable=True, queue_arguments=dying), kombu.Queue("s", news, durable=True)]
    inbox = Inbox(connect(visibility_timeout=3, consumer_heartbeat_timeout=3).channel(), *queues, ack=False)
    add(redis_client)
    kombu.Producer(channel, bound).publish("1", routing_key="k")
    kombu.Producer(channel, news).publish("2")
    assert sorted(inbox.drain(2)) == ["1", "2"]
    service = inbox.channel.session.service
    for message in inbox.messages:
        if message.payload == "1":
            message.reject()
    wait_until(lambda: (inbox.pump(0.02), channel.queue_sizes("letters").ready == 1)[1], 20)
    # Each task once more, whenever it is due.
    service.stop()
    for task in service.runner.tasks:
        task.run()
        if isinstance(task, Janitor):
            task.clear()
    service.start()
    with BrokerAdmin(broker_url) as admin:
        assert {"q", "s", "letters"} <= {one.queue for one in admin.overview()}
        assert {one.queue for one in admin.all_consumers()} >= {"q", "s"}
        assert "q" in admin.all_counters()
        assert "news" in admin.subscribers()
        list(admin.examine())
        list(admin.checker().run())
    inbox.channel.queue_delete("q")
    assert not service.runner.failing
    assert "defect" not in caplog.text
