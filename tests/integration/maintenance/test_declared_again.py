"""What a process knows of a queue that another one deletes and declares again, and of how many it knows."""

from __future__ import annotations

import kombu

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

#: Sweeps, by which a consuming process notices, come every 0.5 s then.
QUICKLY = {"visibility_timeout": 3}


def test_a_lasting_queue_that_was_transient_is_not_given_an_end(connect, declare_elsewhere, redis_client):
    channel = connect(**QUICKLY).channel()
    queue = kombu.Queue("q", queue_arguments={"x-expires": 1000})
    inbox = Inbox(channel, queue)
    declare_elsewhere("q")
    publish(channel, "q", "a")
    assert inbox.drain(1) == ["a"]
    service = channel.session.service
    wait_until(lambda: service.consumed.all()[0].ttl_ms is None)
    assert redis_client.pttl("meta:{q}") == -1
    channel.session.queues.touch("q")
    assert redis_client.pttl("meta:{q}") == -1


def test_a_transient_queue_that_was_lasting_is_kept_by_those_who_consume_it(connect, declare_elsewhere, redis_client):
    # Its life is renewed at every third of this time.
    channel = connect(**QUICKLY, consumer_heartbeat_timeout=3).channel()
    Inbox(channel, "q")
    declare_elsewhere("q", arguments={"x-expires": 3000})
    service = channel.session.service
    wait_until(lambda: service.consumed.all()[0].ttl_ms == 3000)
    left_ms = [redis_client.pttl("meta:{q}")]

    def renewed():
        left_ms.append(redis_client.pttl("meta:{q}"))
        return left_ms[-1] > left_ms[-2]

    wait_until(renewed)


def test_a_running_consumer_hears_of_messages_when_its_queue_has_got_a_single_active_consumer(connect, declare_elsewhere):
    options = {**QUICKLY, "consumer_heartbeat_timeout": 3, "polling_interval": 60}
    channel = connect(**options).channel()
    inbox = Inbox(channel, "q")
    inbox.pump(0.1)
    declare_elsewhere("q", arguments={"x-single-active-consumer": True})
    service = channel.session.service
    wait_until(lambda: not inbox.pump(0.05) and channel.queue_consumers.wakeups["q"] != channel.session.keys.queue("q").wakeup)
    assert service.consumer_lists.next_run_at
    publish(channel, "q", "a")
    assert inbox.drain(1, timeout_s=8) == ["a"]


def test_a_settlement_wakes_others_where_the_queue_has_got_a_limit_of_unacked_messages(connect, declare_elsewhere):
    channel = connect(**QUICKLY).channel()
    inbox = Inbox(channel, "q")
    declare_elsewhere("q", arguments={"x-max-unacked": 2})
    service = channel.session.service
    wait_until(lambda: not inbox.pump(0.05) and "q" in service.unacked_messages.limited)
    declare_elsewhere("q")
    wait_until(lambda: not inbox.pump(0.05) and "q" not in service.unacked_messages.limited)


def test_a_process_remembers_a_bounded_number_of_queues(channel, monkeypatch):
    records = channel.session.service.topology.records
    monkeypatch.setattr(records, "_most", 50)
    for number in range(120):
        declare(channel, f"reply{number}", auto_delete=True)
    publish(channel, "reply119", "a", expiration=60)
    assert 50 <= sum(records.get(f"reply{number}") is not None for number in range(120)) <= 2 * 50
    assert channel.basic_get("reply119").payload == "a"


def test_the_queues_that_a_process_uses_are_remembered_among_many_others(channel, monkeypatch):
    monkeypatch.setattr(channel.session.service.topology.records, "_most", 10)
    declare(channel, "q")
    for number in range(100):
        declare(channel, f"reply{number}", auto_delete=True)
        assert channel.session.queues.cached("q"), f"forgotten after {number} others"


def test_the_queues_that_a_process_consumes_are_remembered_however_many_they_are(channel, redis_client, monkeypatch):
    """Their sweeps ask for each of them: one that is forgotten is taken for declared again."""
    records, service = channel.session.service.topology.records, channel.session.service
    monkeypatch.setattr(records, "_most", 10)
    Inbox(channel, *(f"q{number}" for number in range(30)))
    wait_until(lambda: all(records.get(f"q{number}") for number in range(30)))
    version = service.consumed.version
    for number in range(30):
        publish(channel, f"q{number}", "later", headers={"x-delay": 60_000})
    meta = channel.session.keys.queue("q29").meta
    wait_until(lambda: int(redis_client.hget(meta, "swept") or 0) >= int(redis_client.hget(meta, "newest")))
    assert service.consumed.version == version
