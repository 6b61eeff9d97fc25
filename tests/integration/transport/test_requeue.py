"""A consumer that sends a message back wants it to be delivered again; that is no failure of the message."""

from __future__ import annotations

import logging

from tests.support.inbox import Inbox, declare, publish
from tests.support.invariants import violations
from tests.support.stored import keys_of
from tests.support.waiting import wait_until


def pause_ms(channel, redis_client):
    """Return for how long the one message of `q` waits, 0 where it does not."""
    keys = keys_of("q")
    wait_until(lambda: redis_client.zcard(keys.index) == 0)
    waiting = redis_client.zrange(keys.delayed, 0, 0, withscores=True)
    seconds, microseconds = redis_client.time()
    return round(waiting[0][1] - seconds * 1000 - microseconds / 1000) if waiting else 0


def test_a_message_that_is_sent_back_does_not_reach_the_default_limit(connect, redis_client):
    inbox = Inbox(connect(delivery_limit=3).channel(), "q", prefetch=1, ack=False)
    publish(inbox.channel, "q", "not now")
    for delivery in range(1, 6):
        inbox.drain(delivery, timeout_s=20)
        assert inbox.messages[-1].headers.get("x-delivery-count", 0) == 0
        inbox.messages[-1].requeue()
    inbox.drain(6, timeout_s=20)
    assert inbox.messages[-1].headers["x-acquired-count"] == 6
    inbox.messages[-1].ack()
    wait_until(lambda: inbox.channel.queue_sizes("q").unacked == 0)
    assert not redis_client.exists("dead:{q}")
    assert violations(redis_client) == []


def test_it_counts_where_the_queue_has_a_limit_of_its_own(channel, redis_client):
    declare(channel, "q", arguments={"x-delivery-limit": 2})
    publish(channel, "q", "not now")
    channel.basic_get("q").requeue()
    again = channel.basic_get("q")
    assert again.headers["x-delivery-count"] == 1
    again.requeue()
    wait_until(lambda: redis_client.zcard("dead:{q}") == 1)


def test_the_first_time_it_is_back_at_once_and_then_it_waits_longer_each_time(channel, redis_client):
    declare(channel, "q")
    publish(channel, "q", "not now")
    seen = []
    for _ in range(10):
        message = wait_until(lambda: channel.basic_get("q"))
        message.requeue()
        seen.append(pause_ms(channel, redis_client))
        # Its time comes.
        for tag in redis_client.zrange("delayed:{q}", 0, -1):
            redis_client.zadd("delayed:{q}", {tag: 1})
            redis_client.zadd("schedule_wakeup:{q}", {"due": 0})
    assert seen[0] == 0
    for pause, least, most in zip(seen[4:], (200, 600, 1400, 3000, 4800, 4800), (400, 800, 1600, 3200, 5000, 5000), strict=True):
        assert least <= pause <= most, seen


def test_what_stands_behind_it_has_its_turn_and_it_keeps_its_priority(channel):
    inbox = Inbox(channel, "q", prefetch=1, ack=False)
    publish(channel, "q", "never", "other", priority=5)
    publish(channel, "q", "last")
    inbox.drain(1)
    inbox.messages[0].requeue()
    assert inbox.drain(2) == ["never", "never"]
    inbox.messages[1].requeue()
    assert inbox.drain(3)[2] == "other"
    # It is due by now, and stands among its priority: before the third one.
    wait_until(lambda: channel.queue_sizes("q").delayed == 0)
    inbox.messages[2].ack()
    assert inbox.drain(4)[3] == "never"


def test_the_log_says_once_that_messages_are_sent_back_repeatedly(channel, caplog):
    declare(channel, "q")
    publish(channel, "q", "one", "two")
    with caplog.at_level(logging.WARNING, "celery_redis_plus"):
        for _ in range(6):
            wait_until(lambda: channel.basic_get("q")).requeue()
        wait_until(lambda: channel.queue_sizes("q").unacked == 0)
    told = [record.getMessage() for record in caplog.records if "was sent back with requeue" in record.getMessage()]
    assert len(told) == 1
    assert "of queue 'q'" in told[0]
