"""Celery tasks that expire: the broker does not end them, a worker of their queue revokes them, before all others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from kombu import Queue

import celery_redis_plus
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def expires_in(seconds):
    """Headers of a Celery task that expires."""
    return {"task": "t", "id": "1", "expires": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def is_over(message):
    """Return whether Celery's worker finds the task expired."""
    return datetime.fromisoformat(message.headers["expires"]) < datetime.now(UTC)


def expired(channel, queue="q"):
    return celery_redis_plus.counters(queue, connection=channel).expired


LIVES = {
    "its moment": lambda: {"headers": expires_in(0.2)},
    "a publisher whose clock is ahead": lambda: {"headers": expires_in(60), "expiration": 0.2},
    "a moment that is no eta any more": lambda: {
        "headers": {**expires_in(0), "expires": "2300-01-01T00:00:00+00:00"},
        "expiration": 0.2,
    },
    "delayed": lambda: {"headers": {**expires_in(0.2), "eta": (datetime.now(UTC) + timedelta(seconds=60)).isoformat()}},
    "delayed, a publisher whose clock is ahead": lambda: {"headers": {**expires_in(60), "x-delay": 50_000}, "expiration": 0.2},
}


@pytest.mark.parametrize("form", LIVES)
@pytest.mark.parametrize("arguments", [{}, {"x-priority-ageing": 60_000}])
def test_it_comes_before_all_others_and_as_one_that_is_over(channel, form, arguments):
    Inbox(channel, "elsewhere")
    queue = Queue("q", queue_arguments=arguments)
    queue(channel).declare()
    publish(channel, "q", "honey", priority=9)
    publish(channel, "q", "milk", priority=1, **LIVES[form]())
    wait_until(lambda: expired(channel) == 1)
    inbox = Inbox(channel, queue)
    assert inbox.drain(2) == ["milk", "honey"]
    assert is_over(inbox.messages[0])
    assert inbox.messages[0].properties["priority"] == 1
    assert dead_letters_of(channel).page("q") == []


def test_it_is_over_though_nobody_swept(connect, redis_client):
    """No consumer, so no maintenance task runs: the claim itself looks."""
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "milk", headers=expires_in(60), expiration=0.05)
    expiry = redis_client.zrange("expiry:{q}", 0, -1, withscores=True)[0][1]
    wait_until(lambda: redis_client.time()[0] * 1000 > expiry)
    assert is_over(channel.basic_get("q", no_ack=True))
    assert expired(channel) == 1


def test_it_waits_for_a_consumer_and_comes_again_when_that_has_died(channel, connect):
    Inbox(channel, "elsewhere")
    declare(channel, "q")
    publish(channel, "q", "milk", headers=expires_in(-1))
    wait_until(lambda: expired(channel) == 1)
    publish(channel, "q", "honey")
    taken = Inbox(connect().channel(), "q", ack=False)
    assert taken.drain(1) == ["milk"]
    taken.messages[0].requeue()
    taken.cancel()
    inbox = Inbox(channel, "q")
    assert inbox.drain(2) == ["milk", "honey"]
    assert is_over(inbox.messages[0])
    assert expired(channel) == 1


def test_it_costs_no_token_of_a_rate_limit(channel):
    Inbox(channel, "elsewhere")
    queue = Queue("q", queue_arguments={"x-rate-limit": 0.1})
    queue(channel).declare()
    for number in range(5):
        publish(channel, "q", str(number), headers=expires_in(-1))
    publish(channel, "q", "honey")
    wait_until(lambda: expired(channel) == 5)
    assert Inbox(channel, queue).drain(6, timeout_s=8)[-1] == "honey"


def test_the_ttl_of_its_queue_ends_it_where_nobody_consumes(channel):
    """Else it would wait for ever in a queue that was to forget."""
    Inbox(channel, "elsewhere")
    declare(channel, "q", arguments={"x-message-ttl": 600})
    publish(channel, "q", "milk", headers=expires_in(0.1))
    wait_until(lambda: expired(channel) == 1)
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    assert (letter.reason, letter.body) == ("expired", b"milk")


@pytest.mark.parametrize("delayed", [{}, {"eta": "2200-01-01T00:00:00+00:00"}])
def test_a_worker_has_the_whole_ttl_of_its_queue_to_revoke_it(channel, redis_client, delayed):
    Inbox(channel, "elsewhere")
    declare(channel, "q", arguments={"x-message-ttl": 60_000})
    publish(channel, "q", "milk", headers=expires_in(0.1) | delayed)
    wait_until(lambda: expired(channel) == 1)
    [(tag, ends)] = redis_client.zrange("expiry:{q}", 0, -1, withscores=True)
    assert 60_000 <= ends - int(tag[:11], 16) < 90_000
    assert float(redis_client.hget(b"message:{q}:" + tag, "expires")) == ends


@pytest.mark.parametrize("delay_ms", [0, 200])
def test_a_ttl_that_is_shorter_than_its_own_time_ends_it(channel, delay_ms):
    Inbox(channel, "elsewhere")
    declare(channel, "q", arguments={"x-message-ttl": 100})
    publish(channel, "q", "milk", headers={**expires_in(60), "x-delay": delay_ms})
    [letter] = wait_until(lambda: dead_letters_of(channel).page("q"))
    assert letter.reason == "expired"


@pytest.mark.parametrize("expired_before", [False, True])
def test_its_own_expiry_goes_with_it_to_another_queue(channel, broker_url, expired_before):
    Inbox(channel, "elsewhere")
    declare(channel, "q", "other")
    publish(channel, "q", "milk", headers=expires_in(60), expiration=0.5)
    if expired_before:
        wait_until(lambda: expired(channel) == 1)
    [waiting] = celery_redis_plus.browse("q", connection=channel)
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.move(waiting.tag, "other", "q")
    published_ms = int(waiting.tag[:11], 16)
    wait_until(lambda: datetime.now(UTC).timestamp() * 1000 > published_ms + 600)
    inbox = Inbox(channel, "other")
    assert inbox.drain(1) == ["milk"]
    assert is_over(inbox.messages[0])


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_message_that_is_moved_expires_where_nobody_consumes(channel, broker_url, redis_client, delay_ms):
    Inbox(channel, "elsewhere")
    declare(channel, "q", "other")
    publish(channel, "q", "milk", headers={"x-delay": delay_ms}, expiration=0.7)
    [waiting] = celery_redis_plus.browse("q", connection=channel)
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.move(waiting.tag, "other", "q")
    if delay_ms:
        assert redis_client.sismember("always_swept", "other")
    else:
        [letter] = wait_until(lambda: dead_letters_of(channel).page("other"))
        assert letter.reason == "expired"


def test_a_dead_letter_exchange_does_not_get_it(channel):
    declare(channel, "next")
    queue = Queue("q", queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "next"})
    queue(channel).declare()
    Inbox(channel, "elsewhere")
    publish(channel, "q", "milk", headers=expires_in(-1))
    wait_until(lambda: expired(channel) == 1)
    assert Inbox(channel, queue).drain(1) == ["milk"]
    assert channel.queue_sizes("next").ready == 0


def test_a_task_with_a_later_time_is_revoked_when_it_expires(channel, broker_url):
    """As one that was published for that time."""
    Inbox(channel, "elsewhere")
    declare(channel, "q")
    publish(channel, "q", "milk", headers=expires_in(0.5))
    [waiting] = celery_redis_plus.browse("q", connection=channel)
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.reschedule(waiting.tag, "+60000", "q")
    assert channel.queue_sizes("q").delayed == 1
    wait_until(lambda: expired(channel) == 1)
    inbox = Inbox(channel, "q")
    assert inbox.drain(1) == ["milk"]
    assert is_over(inbox.messages[0])
