"""Several consumers of one queue on one channel: each is known by its tag, as in AMQP."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kombu
import pytest

from celery_redis_plus.errors import AccessRefused, InvalidArgument, NotAllowed
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until


class Taker:
    """A consumer of a queue, which keeps what it gets."""

    def __init__(self, channel: Any, queue: str, tag: str, **options: Any) -> None:
        self.got: list[Any] = []
        self.channel = channel
        self.ack = not options.get("no_ack")
        self.tag = channel.basic_consume(queue, callback=self._take, consumer_tag=tag, **options)

    def _take(self, message: Any) -> None:
        self.got.append(message.payload)
        if self.ack:
            message.ack()


def drain(channel: Any, *takers: Taker, count: int) -> list[int]:
    def complete() -> bool:
        with suppress(TimeoutError):
            channel.connection.client.drain_events(timeout=0.05)
        return sum(len(taker.got) for taker in takers) >= count

    wait_until(complete)
    return [len(taker.got) for taker in takers]


def test_they_get_messages_in_turn_and_the_cancel_of_one_leaves_the_other(connect):
    channel, publisher = connect().channel(), connect().channel()
    declare(channel, "q")
    first, second = Taker(channel, "q", "first"), Taker(channel, "q", "second")
    publish(publisher, "q", *range(10))
    assert drain(channel, first, second, count=10) == [5, 5]
    channel.basic_cancel("second")
    publish(publisher, "q", *range(10))
    assert drain(channel, first, second, count=20) == [15, 5]
    channel.basic_cancel("first")
    publish(publisher, "q", "kept")
    assert channel.queue_sizes("q").ready == 1


def test_each_has_its_own_acks(connect):
    channel, publisher = connect().channel(), connect().channel()
    declare(channel, "q")
    quick = Taker(channel, "q", "quick", no_ack=True)
    careful = Taker(channel, "q", "careful")
    careful.ack = False
    publish(publisher, "q", *range(6))
    assert drain(channel, quick, careful, count=6) == [3, 3]
    wait_until(lambda: publisher.queue_sizes("q").unacked == 3)
    channel.close()
    assert [publisher.basic_get("q").payload for _ in range(3)] == careful.got


def test_broadcasts_of_their_queue_come_in_turn_too(connect):
    channel, publisher = connect().channel(), connect().channel()
    news = kombu.Exchange("news", "fanout", durable=True)
    kombu.Queue("q", news, durable=True)(channel).declare()
    quick, careful = Taker(channel, "q", "quick", no_ack=True), Taker(channel, "q", "careful")
    for number in range(6):
        kombu.Producer(publisher, news).publish(number)
    assert drain(channel, quick, careful, count=6) == [3, 3]
    assert not channel.qos.busy


@pytest.mark.parametrize("queue", ["q", "other"])
@pytest.mark.parametrize("arguments", [{}, {"x-browse": True}])
def test_a_tag_in_use_is_refused_and_can_be_used_again_after_its_cancel(channel, queue, arguments):
    declare(channel, "q", "other")
    taker = Taker(channel, "q", "same")
    with pytest.raises(NotAllowed, match="consumer tag 'same' is in use") as caught:
        channel.basic_consume(queue, callback=print, consumer_tag="same", arguments=arguments)
    assert caught.value.code == 530
    publish(channel, "q", 1)
    assert drain(channel, taker, count=1) == [1]
    channel.basic_cancel("same")
    again = Taker(channel, "other", "same")
    publish(channel, "other", 1)
    assert drain(channel, again, count=1) == [1]


@pytest.mark.parametrize("second", [{"exclusive": True}, {"arguments": {"x-priority": 3}}])
def test_one_that_cannot_share_the_queue_is_refused(channel, second):
    declare(channel, "q")
    taker = Taker(channel, "q", "first")
    with pytest.raises((AccessRefused, InvalidArgument)):
        channel.basic_consume("q", callback=print, consumer_tag="second", **second)
    publish(channel, "q", 1, 2)
    assert drain(channel, taker, count=2) == [2]
