"""The bytes that a queue with `x-max-length-bytes` counts for: what is counted in is counted out."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.scripts import script
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def test_a_replayed_message_from_before_the_limits_is_not_counted(channel, redis_client):
    meta = channel.session.keys.queue("q").meta
    declare(channel, "q")
    publish(channel, "q", "old")
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), ack=False)
    inbox.drain(1)
    inbox.messages[0].reject()
    (letter,) = wait_until(lambda: dead_letters_of(channel).page("q"))
    # The record was assumed until now: the first process that knows the limits declares the queue.
    redis_client.hset(meta, "assumed", 1)
    declare(channel, "q", arguments={"x-max-length-bytes": 1000})
    assert redis_client.hexists(meta, "limited")

    assert dead_letters_of(channel).replay(letter)
    assert channel.queue_purge("q") == 1
    assert int(redis_client.hget(meta, "bytes") or 0) == 0


def move(channel, tag):
    declare(channel, "other")
    session = channel.session
    assert Messages(session.commands, session.keys, dead_letter_max=10).move("q", tag, "other")


def die_and_ack_late(channel, tag):
    channel.basic_reject(tag, requeue=False)
    wait_until(lambda: dead_letters_of(channel).page("q"))
    assert channel.session.commands.call(script("ack"), channel.session.keys.queue("q").ack, tag) == 1


@pytest.mark.parametrize("go", [move, die_and_ack_late])
def test_what_goes_is_counted_out_once(channel, redis_client, go):
    meta = channel.session.keys.queue("q").meta
    declare(channel, "q", arguments={"x-max-length-bytes": 10_000})
    publish(channel, "q", "stays")
    counted = redis_client.hget(meta, "bytes")
    assert channel.basic_get("q").payload == "stays"
    publish(channel, "q", "goes")
    (tag,) = redis_client.zrange(channel.session.keys.queue("q").ready, 0, -1)
    if go is not move:
        channel.basic_get("q")
    go(channel, tag.decode())
    assert redis_client.hget(meta, "bytes") == counted
