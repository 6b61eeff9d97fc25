"""Messages that live for a time: never delivered after it, never deleted silently."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import kombu
import pytest

import celery_redis_plus
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidExpiration
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def expires_in(seconds):
    """Headers of a Celery task that expires."""
    return {"task": "t", "id": "1", "expires": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def test_an_expired_message_becomes_a_dead_letter_where_nobody_consumes_it(channel):
    Inbox(channel, "elsewhere")
    declare(channel, "q")
    publish(channel, "q", "milk", expiration=0.2)
    publish(channel, "q", "honey")
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    assert (letter.reason, letter.body, letter.deliveries) == ("expired", b"milk", 0)
    assert Inbox(channel, "q").drain(1) == ["honey"]


def test_the_queues_ttl_holds_for_publishers_that_do_not_know_it(channel, connect):
    declare(channel, "q", arguments={"x-message-ttl": 200})
    Inbox(channel, "elsewhere")
    publish(connect().channel(), "q", "milk")
    assert wait_until(lambda: dead_letters_of(channel).page("q"))[0].reason == "expired"


def test_an_expired_message_is_not_delivered_though_nobody_swept(connect, redis_client):
    """No consumer, so no maintenance task runs: the claim itself looks."""
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "milk", expiration=0.05)
    publish(channel, "q", "honey")
    expiry = redis_client.zrange("expiry:{q}", 0, -1, withscores=True)[0][1]
    wait_until(lambda: redis_client.time()[0] * 1000 > expiry)
    assert channel.basic_get("q", no_ack=True).payload == "honey"
    assert channel.basic_get("q", no_ack=True) is None


def test_a_delayed_message_lives_from_when_it_is_deliverable(channel):
    Inbox(channel, "elsewhere")
    declare(channel, "q")
    publish(channel, "q", "milk", expiration=0.5, headers={"x-delay": 700})
    wait_until(lambda: channel.queue_sizes("q").ready == 1)
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    published_ms = int(letter.tag[:11], 16)
    assert letter.died_ms - published_ms >= 1200


def test_a_claimed_message_does_not_expire_and_does_when_it_comes_back(channel):
    declare(channel, "q")
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "milk", expiration=0.3)
    inbox.drain(1)
    inbox.cancel()
    wait_until(lambda: datetime.now(UTC).timestamp() > inbox.times[0] + 0.4)
    assert dead_letters_of(channel).page("q") == []
    Inbox(channel, "elsewhere")
    inbox.messages[0].requeue()
    assert wait_until(lambda: dead_letters_of(channel).page("q"))[0].reason == "expired"


def test_a_replayed_message_that_had_expired_does_not_expire_again(channel):
    Inbox(channel, "elsewhere")
    queue = kombu.Queue("q", queue_arguments={"x-message-ttl": 1_000})
    queue(channel).declare()
    publish(channel, "q", "milk", headers=expires_in(0.3))
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    wait_until(lambda: datetime.now(UTC).isoformat() > letter.headers["expires"])
    inbox = Inbox(channel, queue)
    assert dead_letters_of(channel).replay(letter)
    assert inbox.drain(1) == ["milk"]
    assert inbox.messages[0].headers["expires"] is None


def test_a_replayed_message_outlives_the_time_at_which_it_would_have_expired(channel):
    """It died of something else: what is left of the life before must not end it after the replay."""
    declare(channel, "q")
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "milk", expiration=0.3)
    inbox.drain(1)
    inbox.messages[0].reject()
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    assert letter.reason == "rejected"
    wait_until(lambda: time.time() > inbox.times[0] + 0.4)
    assert dead_letters_of(channel).replay(letter)
    assert inbox.drain(2) == ["milk", "milk"]


def test_an_expired_reply_is_dropped_and_counted(channel, redis_client):
    Inbox(channel, "elsewhere")
    channel.queue_declare("replies", auto_delete=True)
    publish(channel, "replies", "late", expiration=0.05)
    wait_until(lambda: redis_client.hget("meta:{replies}", "discarded") == b"1")
    assert not redis_client.keys("message:{replies}:*")


@pytest.mark.parametrize("expiration", ["soon", -1, 1.5, True, "1" * 20])
def test_an_expiration_that_is_none_is_refused(channel, expiration):
    declare(channel, "q")
    message = channel.prepare_message(b"x", properties={"expiration": expiration})
    with pytest.raises(InvalidExpiration, match="is no time to live; allowed is a whole number of milliseconds"):
        channel.basic_publish(message, "", "q")
    assert channel.queue_sizes("q").ready == 0


def test_expires_that_is_no_time_is_refused_for_tasks_and_passed_on_for_others(channel):
    declare(channel, "q")
    with pytest.raises(InvalidExpiration, match="expires 'tomorrow' is no time"):
        publish(channel, "q", "x", headers={"task": "t", "expires": "tomorrow"})
    publish(channel, "q", "x", headers={"expires": "tomorrow"})
    inbox = Inbox(channel, kombu.Queue("q", durable=True))
    inbox.drain(1)
    assert inbox.messages[0].headers["expires"] == "tomorrow"


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_new_time_does_not_lengthen_a_life_that_has_begun(channel, broker_url, delay_ms):
    """A ready message ends when its time to live is over; that of a delayed one begins at the new time."""
    Inbox(channel, "elsewhere")
    declare(channel, "q")
    publish(channel, "q", "milk", expiration=0.5, headers={"x-delay": delay_ms})
    (waiting,) = celery_redis_plus.browse("q", connection=channel, state="delayed" if delay_ms else "ready")
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.reschedule(waiting.tag, "+700" if delay_ms else "+60000", "q")
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    lived_ms = letter.died_ms - int(letter.tag[:11], 16)
    assert letter.reason == "expired"
    assert lived_ms >= 1200 if delay_ms else lived_ms < 30_000
