"""The delivery loops of two shards: served in turn, and lost alone."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.consumer.delivery_loop import DeliveryLoop
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.shards.delivery_loop import ShardsLoop
from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.compat import HUB_READY
from tests.unit.consumer.in_memory import InMemorySession


class TwoShards:
    def __init__(self):
        self.sessions = [InMemorySession(), InMemorySession()]
        self.lost = []
        self.loop = ShardsLoop(lambda number, error: self.lost.append((number, str(error))), lambda: None)
        self.channels, self.messages = [], []
        for number, session in enumerate(self.sessions):
            transport = kombu.Connection("redisplus://").transport
            transport.session, transport._delivery_loop = session, DeliveryLoop(session, HUB_READY.of)  # noqa: SLF001
            self.loop.add(number, transport.delivery_loop)
            channel = Channel(transport)
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume("q", callback=self.messages.append, consumer_tag="q")
            self.channels.append(channel)

    def publish(self, *tags):
        for session, of_server in zip(self.sessions, tags, strict=True):
            session.claim_commands.publish("q", *of_server)

    def drain(self):
        while self.loop.drain(0):
            self.messages[-1].ack()
        return [message.delivery_tag for message in self.messages]


@pytest.fixture
def servers():
    return TwoShards()


def test_messages_of_two_servers_are_delivered_in_turn(servers):
    servers.publish("ace", "bdf")
    assert servers.drain() == [*"abcdef"]
    assert [len(session.service.unacked_messages) for session in servers.sessions] == [0, 0]


def test_a_server_without_messages_holds_up_no_other(servers):
    servers.publish("", "bdf")
    assert servers.drain() == [*"bdf"]


def test_a_wakeup_of_any_server_ends_the_wait(servers):
    assert servers.drain() == []
    servers.publish("", "b")
    servers.sessions[1].waiter.comes(servers.sessions[1].keys.queue("q").wakeup_of(""))
    assert servers.loop.drain(5)
    assert [message.delivery_tag for message in servers.messages] == ["b"]


def test_each_server_gets_the_acks_of_its_own_messages(servers):
    servers.publish("a", "b")
    servers.drain()
    for session, tag in zip(servers.sessions, "ab", strict=True):
        session.acknowledger.flush()
        assert [settled for _, settled in session.claim_commands.settled] == [tag]


def test_the_loss_of_one_connection_leaves_the_other(servers):
    def check():
        raise ServerUnreachable("lost")

    servers.publish("ab", "c")
    servers.sessions[1].broken, servers.sessions[1].check_open = True, check
    assert servers.drain() == [*"ab"]
    assert servers.lost == [(1, "lost")]


def test_what_a_consumer_raises_is_no_loss(servers):
    def fail(_):
        raise ServerUnreachable("of another server")

    servers.publish("a", "")
    servers.channels[0].basic_cancel("q")
    servers.channels[0].basic_consume("q", callback=fail, consumer_tag="q")
    with pytest.raises(ServerUnreachable, match="of another server"):
        servers.loop.drain(0)
    assert servers.lost == []
