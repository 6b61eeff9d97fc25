"""Whatever the keys of one exchange hold, the other exchanges of its publishers and subscribers go on.

Each kind of key that an exchange has (`key_descriptions.py`) is replaced by one of another type. So a new key has its test.
"""

from __future__ import annotations

from contextlib import suppress

import kombu
import pytest
from field_descriptions import FANOUT_FIELDS
from key_descriptions import OF_AN_EXCHANGE
from redis.exceptions import ResponseError

from celery_redis_plus.broker.fanout import reader
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.maintenance.dead_subscribers import DeadSubscribers
from celery_redis_plus.maintenance.janitor import Janitor
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

LIMITS = {"x-max-pending": 100}
#: Keys of an exchange whose names are known beforehand.
KINDS = [one.pattern for one in OF_AN_EXCHANGE if not any(word in one.key for word in (b"NUMBER", b"PUBLISHER", b"PRODUCER"))]


class Scene:
    """Two connections that subscribe to two exchanges, and a publisher of both."""

    def __init__(self, connect, client, arguments, *, durable):
        self.client = client
        self.connect = connect
        self.exchanges = {name: kombu.Exchange(name, "fanout", durable=True, arguments=arguments) for name in ("bad", "good")}
        self.publisher = connect().channel()
        self.inboxes = []
        for number in range(2):
            queues = [
                kombu.Queue(f"{name}.{number}", exchange, durable=durable, auto_delete=not durable)
                for name, exchange in self.exchanges.items()
            ]
            self.inboxes.append(Inbox(connect(subscriber_timeout=30, polling_interval=1).channel(), *queues))
        self.send("bad", "1")
        self.send("good", "1")
        for inbox in self.inboxes:
            inbox.drain(2)

    def send(self, name, body):
        kombu.Producer(self.publisher, self.exchanges[name]).publish(body)

    def pump(self):
        for inbox in self.inboxes:
            inbox.pump(0.02)

    def damage(self, pattern):
        key = pattern.encode().replace(b"{/0.X}", b"{/0.bad}").replace(b"{X}", b"{bad}").replace(b"/0.X", b"/0.bad")
        self.client.delete(key)
        self.client.set(key, "foreign")

    def take(self, *bodies):
        """Let both take deliveries until they have these broadcasts of the good exchange, and no others of it."""

        def taken():
            self.pump()
            return all(self.got(inbox) == [*bodies] for inbox in self.inboxes)

        wait_until(taken, 20, interval_s=0)

    @staticmethod
    def got(inbox):
        return [message.payload for message in inbox.messages if message.delivery_info["exchange"] == "good"]

    def check(self):
        for body in ("2", "3", "4"):
            with suppress(ResponseError, InvalidArgument):
                self.send("bad", body)
            self.send("good", body)
        self.take("1", "2", "3", "4")

        def told():
            self.pump()
            return self.client.zrange("cursors:{/0.good}", 0, 0, withscores=True)[0][1] == 4

        wait_until(told, 20)
        # A reader that comes later, and a queue of its own, which goes.
        late = Inbox(self.connect().channel(), kombu.Queue("late", self.exchanges["good"], durable=True))
        self.send("good", "5")
        assert late.drain(1) == ["5"]
        late.channel.queue_delete("late")
        assert "durable.late" not in [name.decode() for name in self.client.zrange("cursors:{/0.good}", 0, -1)]
        for inbox in self.inboxes:
            service = inbox.channel.session.service
            for task in service.runner.tasks:
                if isinstance(task, DeadSubscribers):
                    task.run()
                elif isinstance(task, Janitor):
                    task.clear()
            assert not service.runner.failing
            inbox.connection.release()


def cases():
    """Return each kind of key with each kind of exchange and subscriber; two of these four are weekly, in turn."""
    kinds = (("plain", "durable"), ("limited", "transient"), ("plain", "transient"), ("limited", "durable"))
    return [
        pytest.param(
            pattern, LIMITS if limits == "limited" else {}, life == "durable", id=f"{pattern}-{limits}-{life}",
            marks=() if place // 2 == number % 2 else pytest.mark.weekly,
        )
        for number, pattern in enumerate(KINDS) for place, (limits, life) in enumerate(kinds)
    ]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize(("pattern", "arguments", "durable"), cases())
def test_a_key_of_another_type_harms_no_other_exchange(connect, redis_client, pattern, arguments, durable):
    scene = Scene(connect, redis_client, arguments, durable=durable)
    scene.damage(pattern)
    scene.check()


def test_a_stream_is_read_again_once_its_key_is_none_of_another_type(connect, redis_client, monkeypatch, caplog):
    monkeypatch.setattr(reader, "LEFT_OUT_S", 0.3)
    scene = Scene(connect, redis_client, {}, durable=True)
    scene.damage("/0.X")
    scene.send("good", "2")
    scene.take("1", "2")
    redis_client.delete("/0.bad")
    # The first ones are no later than what the stream had before: the heartbeats tell that it began anew.
    scene.send("bad", "3")

    def came():
        scene.pump()
        return all("3" in inbox.bodies for inbox in scene.inboxes)

    wait_until(came, 20, interval_s=0)
    assert len([line for line in caplog.messages if "'bad' has a stream that cannot be read" in line]) == len(scene.inboxes)


@pytest.mark.parametrize("odd", ["x", ""])
def test_damaged_fields_of_its_counters_harm_no_other_exchange(connect, redis_client, odd):
    scene = Scene(connect, redis_client, LIMITS, durable=True)
    redis_client.hset("fanout:{/0.bad}", mapping=dict.fromkeys(FANOUT_FIELDS, odd))
    scene.check()


def test_dead_subscribers_of_other_exchanges_are_found_beside_a_record_that_cannot_be_read(connect, redis_client):
    news = kombu.Exchange("news", "fanout", durable=True)
    inbox = Inbox(connect().channel(), kombu.Queue("q", news, durable=True))
    redis_client.hset("exchanges", "aaa", "no json")
    assert inbox.channel.session.bindings.of_type("fanout").keys() == {"news"}
