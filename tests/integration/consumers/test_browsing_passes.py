"""When a browsing consumer looks through its queue again: the passes of `x-browse`."""

from __future__ import annotations

import kombu

from celery_redis_plus import clock
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import keys_of
from tests.support.waiting import wait_until


class Browser(Inbox):
    """An inbox that browses `q`."""

    def __init__(self, channel, **options):
        entity = kombu.Queue("q", durable=True, consumer_arguments={"x-browse": True})
        super().__init__(channel, entity, **{"ack": False, **options})


def test_a_pass_over_a_long_known_queue_leaves_the_loop_to_others(channel, redis_client):
    of = keys_of("q")
    declare(channel, "q")
    publish(channel, "q", "original")
    fill(redis_client, of, of.ready, 100_000)
    Browser(channel)
    (browser,) = channel.delivery_loop.server.browsers
    # As after the first pass.
    browser._met_before = {tag.decode() for tag in redis_client.zrange(of.ready, 0, -1)}  # noqa: SLF001 - it takes minutes
    looks = 0
    while browser.next_read_at == 0:
        assert not browser.deliver_one()
        looks += 1
    assert looks > 3
    assert browser.next_read_at > clock.now_s()


def test_the_pause_between_passes_does_not_grow(channel):
    declare(channel, "q")
    publish(channel, "q", 1)
    browser = Browser(channel)
    (passes,) = channel.delivery_loop.server.browsers
    assert browser.drain(1) == [1]
    for number in (2, 3, 4):
        publish(channel, "q", number)
        browser.drain(number, timeout_s=10)
    assert browser.rest(0.1) == [1, 2, 3, 4]
    # As if a slow pass had ended before the last one.
    passes._spent_s = 600.0  # noqa: SLF001 - it takes ten minutes
    passes.next_read_at = 0.0
    publish(channel, "q", 5)
    browser.drain(5, timeout_s=10)
    wait_until(lambda: browser.rest(0.05) and passes.next_read_at > clock.now_s() + 3600)
    passes.next_read_at = 0.0
    publish(channel, "q", 6)
    browser.drain(6, timeout_s=10)
    browser.rest(0.3)
    assert passes.next_read_at < clock.now_s() + 600
