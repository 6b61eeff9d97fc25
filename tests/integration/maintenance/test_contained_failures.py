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
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.topology_recovery import TopologyRecovery
from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues
from tests.support.dead_letters import dead_letters_of
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


def test_other_vanished_queues_are_found_beside_a_foreign_record(channel, redis_client, refusals):
    for number in range(5):
        kombu.Queue(f"q{number}", expires=0.3, durable=False)(channel).declare()
    wait_until(lambda: not redis_client.keys("meta:{q?}"))
    redis_client.set("meta:{q2}", "foreign")
    session = channel.session
    queues = Queues(session.commands, session.keys, transient_ttl_s=300)
    # The last one is overdue a moment after its record is gone.
    wait_until(lambda: sorted(queues.registry.overdue()) == ["q0", "q1", "q3", "q4"])
    assert "queue 'q2'" in refusals()[0]
    # It does not stay the first one that is looked at.
    assert redis_client.zscore("queues", "q2") > max(redis_client.zscore("queues", f"q{number}") for number in (0, 1, 3, 4))


def test_other_queues_without_consumers_are_swept_beside_a_foreign_record(channel, redis_client, refusals):
    for number in range(3):
        kombu.Queue(f"q{number}", durable=True, queue_arguments={"x-message-ttl": 1000})(channel).declare()
    replace(redis_client, "meta:{q1}")
    redis_client.sadd("always_swept", "gone")
    session = channel.session
    task = UnconsumedQueues(Queues(session.commands, session.keys, transient_ttl_s=300), Leadership(5))
    task.run()
    assert sorted(task.queues) == ["q0", "q1", "q2"]
    assert "queue 'q1'" in refusals()[0]


def test_other_event_logs_are_ended_beside_a_foreign_record(channel, redis_client, refusals):
    session = channel.session
    settings = EventLogSettings(wanted=True, max_age_ms=1)
    queues = Queues(session.commands, session.keys, transient_ttl_s=300, event_log=settings)
    for number in range(3):
        kombu.Queue(f"q{number}", durable=True, queue_arguments={"x-event-log": True})(channel).declare()
        publish(channel, f"q{number}", "x")
    for name in ("q0", "q2"):
        queues.delete(name)
    replace(redis_client, "meta:{q1}")
    logs = EndedEventLogs(queues)
    wait_until(lambda: (logs.run(), redis_client.keys("events:*") == [b"events:{q1}"])[1])
    assert "queue 'q1'" in refusals()[0]


@pytest.mark.parametrize("kind", ["queue", "binding"])
def test_other_queues_and_bindings_are_declared_again_after_a_flush(connect, redis_client, refusals, kind):
    channel = connect().channel()
    exchanges = [kombu.Exchange(f"x{number}", "direct", durable=True) for number in range(3)]
    inbox = Inbox(channel, *(kombu.Queue(f"q{number}", one, "k", durable=True) for number, one in enumerate(exchanges)))
    redis_client.flushdb()
    redis_client.set("queue:{q1}" if kind == "queue" else "binding:{x1}", "foreign")
    (recovery,) = (task for task in channel.session.service.runner.tasks if isinstance(task, TopologyRecovery))
    recovery.run_soon()
    channel.session.service.wake()
    wait_until(lambda: {b"q0", b"q2"} <= set(redis_client.zrange("queues", 0, -1)), 20)
    wait_until(lambda: all(redis_client.hlen(f"binding:{{x{number}}}") == 2 for number in (0, 2)), 20)
    for one in (exchanges[0], exchanges[2]):
        kombu.Producer(connect().channel(), one).publish("x", routing_key="k")
    inbox.drain(2)
    wait_until(refusals)
    assert any("queue 'q1'" in line or "exchange 'x1'" in line for line in refusals())
    assert not channel.session.service.runner.failing


def test_a_record_that_cannot_be_read_keeps_no_dead_letter_of_other_queues(connect, redis_client, refusals):
    channel = connect().channel()
    kombu.Queue("letters", durable=True)(channel).declare()
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    inbox = Inbox(channel, "a", kombu.Queue("b", durable=True, queue_arguments=dying), ack=False)
    redis_client.hset("meta:{a}", mapping={"id": "other", "arguments": "no JSON"})
    publish(channel, "b", "x")
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: channel.queue_sizes("letters").ready == 1, 20)
    wait_until(refusals, 10)
    assert "queue 'a'" in refusals()[0]
    assert not channel.session.service.runner.failing


@pytest.mark.parametrize("kind", ["queue", "wakeup"])
def test_dead_letters_whose_target_refuses_them_are_kept_and_others_go_on(channel, redis_client, kind):
    """In the same queue, behind more of them than one page has, and in others."""
    fallen = kombu.Exchange("fallen", "direct", durable=True)
    for name in ("bad", "good"):
        kombu.Queue(name, fallen, routing_key=name, durable=True)(channel).declare()
    for number in range(2):
        work = kombu.Exchange(f"work.{number}", "direct", durable=True)
        arguments = {"x-dead-letter-exchange": "fallen", "x-message-ttl": 1}
        bindings = [kombu.binding(work, routing_key=name) for name in ("bad", "good")]
        kombu.Queue(f"source.{number}", bindings=bindings, durable=True, queue_arguments=arguments)(channel).declare()
    replace(redis_client, f"{kind}:{{bad}}")
    for number, key, body in (*((0, "bad", "x") for _ in range(150)), (0, "good", "1"), (1, "good", "2")):
        kombu.Producer(channel).publish(body, exchange=f"work.{number}", routing_key=key)
    inbox = Inbox(channel, "good")
    assert sorted(inbox.drain(2, 20)) == ["1", "2"]
    if kind == "wakeup":
        # It is refused when the message is stored.
        wait_until(lambda: redis_client.zcard("queue:{bad}") == 150, 20)
        wait_until(lambda: not redis_client.exists("dlx_outbox:{source.0}"), 20)
        assert not redis_client.exists("dead:{source.0}")
        return
    wait_until(lambda: redis_client.zcard("dead:{source.0}") == 150, 20)
    letter = dead_letters_of(channel).page("source.0")[0]
    assert "WRONGTYPE" in letter.failure.text
    assert dead_letters_of(channel).read("source.0", [letter.tag]) == [letter]
    assert not channel.session.service.runner.failing


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

    wait_until(lambda: told() == [2, 2])
    wait_until(refusals)
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
