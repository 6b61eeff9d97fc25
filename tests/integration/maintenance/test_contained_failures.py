"""What the broker refuses about one queue or exchange keeps no maintenance task from the others, and is logged once."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.maintenance import consumer_timeouts
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.ended_event_logs import EndedEventLogs
from celery_redis_plus.maintenance.janitor import Janitor
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until


def replace(client, key):
    client.delete(key)
    client.set(key, "foreign")


@pytest.fixture
def refusals(caplog):
    return lambda: [line for line in caplog.messages if "others go on" in line]


def test_what_other_vanished_queues_have_left_is_removed(channel, redis_client, refusals):
    names = [f"q{number}" for number in range(5)]
    for name in names:
        kombu.Queue(name, expires=0.3, durable=False)(channel).declare()
        publish(channel, name, "x")
    replace(redis_client, "dead:{q2}")
    wait_until(lambda: not redis_client.keys("meta:{q?}"))
    session = channel.session
    queues = Queues(session.commands, session.keys, transient_ttl_s=300)
    janitor = Janitor(queues, Bindings(session.commands, session.keys), ConsumedQueues())
    for _ in range(2):
        janitor.clear()
    assert {key for key in redis_client.keys("queue:*") if key != b"queue:{q2}"} == set()
    (line,) = refusals()
    assert "queue 'q2'" in line


def test_other_event_logs_are_ended(channel, redis_client, refusals):
    session = channel.session
    settings = EventLogSettings(wanted=True, max_age_ms=1)
    queues = Queues(session.commands, session.keys, transient_ttl_s=300, event_log=settings)
    for number in range(5):
        kombu.Queue(f"q{number}", durable=True, queue_arguments={"x-event-log": True})(channel).declare()
        publish(channel, f"q{number}", "x")
        queues.delete(f"q{number}")
    replace(redis_client, "events:{q2}")
    logs = EndedEventLogs(queues)
    wait_until(lambda: (logs.run(), redis_client.keys("events:*") == [b"events:{q2}"])[1])
    logs.run()
    (line,) = refusals()
    assert "queue 'q2'" in line


@pytest.mark.parametrize("kind", ["subscribers", "subscriber", "cursors", "fanout"])
def test_subscribers_of_other_exchanges_send_their_heartbeats(connect, redis_client, refusals, kind):
    channel = connect().channel()
    exchanges = [kombu.Exchange(name, "fanout", durable=True) for name in ("first", "bad", "last")]
    inbox = Inbox(channel, *(kombu.Queue(f"q.{one.name}", one, durable=True) for one in exchanges))
    for one in exchanges:
        kombu.Producer(connect().channel(), one).publish("x")
    inbox.drain(3)
    replace(redis_client, f"{kind}:{{/0.bad}}")
    for one in (exchanges[0], exchanges[2]):
        kombu.Producer(connect().channel(), one).publish("y")
    inbox.drain(5)

    def told():
        return [redis_client.zrange(f"cursors:{{/0.{name}}}", 0, 0, withscores=True)[0][1] for name in ("first", "last")]

    wait_until(lambda: told() == [2, 2], 10)
    wait_until(refusals, 10)
    assert "exchange 'bad'" in refusals()[0]


def test_a_broadcast_that_cannot_be_given_up_is_told_and_ends_once_it_can(channel, redis_client, refusals, monkeypatch):
    monkeypatch.setattr(consumer_timeouts, "AGAIN_S", 0.2)
    news = kombu.Exchange("news", "fanout")
    arguments = {"x-consumer-timeout": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    held = Inbox(channel, kombu.Queue("s", news, durable=True, queue_arguments=arguments), prefetch=1, ack=False)
    kombu.Queue("letters", durable=True)(channel).declare()
    replace(redis_client, "dlx_outbox:{s}")
    for body in ("first", "second"):
        kombu.Producer(channel, news).publish(body)
    held.drain(1)
    wait_until(lambda: (held.pump(0.02), refusals())[1], 10)
    # Two more tries.
    held.rest(0.6)
    assert len(held.messages) == 1
    (line,) = refusals()
    assert "queue 's'" in line
    redis_client.delete("dlx_outbox:{s}")
    wait_until(lambda: (held.pump(0.02), len(held.messages) == 2)[1], 10)
    wait_until(lambda: channel.queue_sizes("letters").ready >= 1, 10)
