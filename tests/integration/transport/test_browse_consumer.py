"""The consumer argument `x-browse`: a consumer that gets copies and takes nothing."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import InvalidArgument
from tests.support.browsing import fill_each_state, standing
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import keys_of
from tests.support.waiting import wait_until


class Browser(Inbox):
    """An inbox that browses `q`."""

    def __init__(self, channel, **options):
        entity = kombu.Queue("q", durable=True, consumer_arguments={"x-browse": True})
        super().__init__(channel, entity, **{"ack": False, **options})


def test_a_browser_gets_a_copy_of_each_ready_message_in_order_and_changes_nothing(channel, redis_client):
    fill_each_state(channel)
    of = keys_of("q")
    before = standing(redis_client, of)
    browser = Browser(channel, prefetch=1)
    assert browser.exactly(3) == ["ready 1", "ready 2", "ready 3"]
    for message in browser.messages:
        message.ack()
        assert message.delivery_tag.startswith("browsed/")
    assert standing(redis_client, of) == before
    assert channel.queue_declare("q", passive=True).consumer_count == 0


def test_messages_that_come_later_are_browsed_once_and_what_consumers_take_is_theirs(channel, connect):
    declare(channel, "q")
    publish(channel, "q", 1, 2)
    browser = Browser(channel)
    browser.drain(2)
    taken = connect().channel().basic_get("q")
    publish(channel, "q", 3)
    publish(channel, "q", 0, priority=9)
    assert sorted(browser.exactly(4)) == [0, 1, 2, 3]
    taken.ack()
    browser.messages[1].ack()
    browser.cancel()
    publish(channel, "q", 4)
    assert browser.rest(1.2) == browser.bodies
    assert len(browser.bodies) == 4
    assert channel.queue_sizes("q").ready == 4


def test_a_long_queue_is_browsed_whole_beside_a_consumer_of_another_one(channel, redis_client):
    of = keys_of("q")
    declare(channel, "q")
    publish(channel, "q", "original")
    fill(redis_client, of, of.ready, 1200)
    browser, consumer = Browser(channel), Inbox(channel, "work")
    browser.drain(1)
    publish(channel, "work", "done")
    while not consumer.messages:
        browser.pump(1)
    assert len(browser.messages) < 200
    wait_until(lambda: (browser.pump(0.05), len(browser.messages) == 1200)[1], 60, interval_s=0)
    tags = [message.delivery_tag.removeprefix("browsed/") for message in browser.messages]
    assert tags == [tag.decode() for tag in redis_client.zrange(of.ready, 0, -1)]
    assert consumer.bodies == ["done"]


def test_a_queue_of_a_fanout_exchange_is_not_browsed(channel):
    channel.exchange_declare("f", "fanout")
    declare(channel, "q")
    channel.queue_bind("q", "f")
    with pytest.raises(InvalidArgument, match="'x-browse' of a consumer of queue 'q', which is bound to the fanout exchange 'f'"):
        channel.basic_consume("q", callback=print, arguments={"x-browse": True})


def test_a_suspended_browser_gets_nothing(channel):
    declare(channel, "q")
    browser = Browser(channel)
    channel.flow(False)
    publish(channel, "q", 1)
    assert browser.rest(0.3) == []
    channel.flow(True)
    assert browser.drain(1) == [1]


def test_a_body_over_a_megabyte_is_fetched(channel):
    declare(channel, "q")
    publish(channel, "q", "x" * 1_200_000)
    assert Browser(channel).drain(1) == ["x" * 1_200_000]


@pytest.mark.parametrize(
    ("arguments", "exclusive", "error"),
    [
        ({"x-browse": "yes"}, False, "'x-browse' of a consumer of queue 'q' is 'yes'; allowed are true and false"),
        ({"x-browse": True, "x-priority": 1}, False, "beside 'x-priority'; allowed is one of the two"),
        ({"x-browse": True}, True, "beside exclusive=True; allowed is one of the two"),
    ],
)
def test_what_does_not_go_with_browsing_is_refused(channel, arguments, exclusive, error):
    declare(channel, "q")
    with pytest.raises(InvalidArgument, match=error):
        channel.basic_consume("q", callback=print, exclusive=exclusive, arguments=arguments)


def test_a_queue_that_is_not_there_cannot_be_browsed(channel):
    with pytest.raises(ChannelError, match="queue 'q' does not exist: there is nothing to browse") as refused:
        channel.basic_consume("q", callback=print, arguments={"x-browse": True})
    assert refused.value.code == 404
