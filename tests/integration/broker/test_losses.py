"""What a consumer's death counts for: the messages that it had begun, and the first time all that it had."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.processes import Processes
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from tests.support.waiting import wait_until

LIMIT = 3


@pytest.fixture
def lose(broker):
    """Have the sweep recover what is claimed; returns how many failures each message has then, by body."""
    limits = SweepLimits(visibility_timeout_s=30, delivery_limit=LIMIT, dead_letter_max=100, dead_letter_ttl_s=1000)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="test", limits=limits, forward=lambda _: None)

    # Of a server that runs for less than that, a sweep does not know whether it was away.
    wait_until(lambda: broker.client.info("server")["uptime_in_seconds"] > 2)

    def run():
        claimed = broker.client.zrange("messages_index:{q}", 0, -1)
        broker.client.zadd("messages_index:{q}", dict.fromkeys(claimed, 1))
        # However slow the test is, nothing looks like an outage.
        seconds, microseconds = broker.client.time()
        broker.client.hset("meta:{q}", mapping={"swept": seconds * 1000 + microseconds // 1000, "grace": 0})
        sweeper.watch(["q"])
        sweeper.run_soon("q")
        sweeper.run()
        keys = broker.client.keys("message:{q}:*")
        found = [broker.client.hmget(key, "payload", "failed") for key in keys]
        return {payload.partition(b"\n")[2]: int(failed or 0) for payload, failed in found}

    return run


@pytest.fixture
def begin(broker):
    def run(message):
        broker.unacked_messages.add([message], "session", clock.now_s())
        held = broker.unacked_messages.find(message.tag)
        broker.acknowledger.begin(held)
        broker.unacked_messages.discard(held)
        # The call is on its way, and this one behind it.
        broker.commands.command("PING")

    return run


def test_a_first_loss_counts_for_all_and_a_later_one_only_for_what_was_begun(broker, lose, begin):
    broker.declare("q")
    broker.publish("q", b"poison", b"innocent", b"other")
    broker.claim("q")
    assert lose() == {b"poison": 1, b"innocent": 1, b"other": 1}
    begin(broker.claim("q")[0])
    assert lose() == {b"poison": 2, b"innocent": 1, b"other": 1}
    assert [(message.body, message.redelivered) for message in broker.claim("q")] == [
        (b"poison", True),
        (b"innocent", True),
        (b"other", True),
    ]
    broker.check()


def test_at_the_limit_only_what_was_begun_dies(broker, lose, begin):
    broker.declare("q")
    broker.publish("q", b"poison", b"innocent")
    for _ in range(LIMIT):
        begin(broker.claim("q")[0])
        lose()
    assert broker.client.zcard("dead:{q}") == 1
    assert [message.body for message in broker.claim("q")] == [b"innocent"]
    broker.check()


def test_a_message_that_kills_its_consumers_before_they_begin_dies_all_the_same(broker, lose):
    broker.declare("q")
    broker.publish("q", b"x")
    # The first loss counts in any case, then 5 * LIMIT + 10 that were not begun do not.
    for _ in range(1 + 5 * LIMIT + 10):
        broker.claim("q")
        assert lose() == {b"x": 1}
    for failures in range(2, LIMIT + 1):
        broker.claim("q")
        assert lose() == {b"x": failures}
    assert broker.client.zcard("dead:{q}") == 1
    broker.check()


def test_a_beginning_of_an_older_claim_does_not_count(broker, lose, begin):
    broker.declare("q")
    broker.publish("q", b"x")
    broker.claim("q")
    lose()
    (old,) = broker.claim("q")
    begin(old)
    assert lose() == {b"x": 2}
    broker.claim("q")
    begin(old)
    assert lose() == {b"x": 2}


def test_a_message_that_never_failed_begins_without_a_word_to_the_server(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    broker.client.config_resetstat()
    broker.acknowledger.begin(broker.unacked_messages.find(message.tag))
    broker.commands.command("PING")
    assert "cmdstat_evalsha" not in broker.client.info("commandstats")


def test_to_begin_over_a_lost_connection_is_no_error_and_opens_none(broker, lose):
    broker.declare("q")
    broker.publish("q", b"x")
    broker.claim("q")
    lose()
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    broker.commands.abort()
    held = broker.unacked_messages.find(message.tag)
    assert isinstance(held, UnackedMessage)
    broker.acknowledger.begin(held)
    assert not broker.commands.connected


def test_a_lost_process_gives_back_what_its_sessions_have_and_a_consumer_is_woken(broker):
    broker.declare("q")
    broker.publish("q", b"lost", b"held", b"lost too")
    others = ClaimCommands(broker.commands, broker.keys, holder="other", visibility_timeout_s=30)
    others.claim(["q"], 1, share=False)
    broker.claim("q", credit=1)
    others.claim(["q"], 1, share=False)
    broker.client.delete("wakeup:{q}")
    processes = Processes(broker.commands, broker.keys, delivery_limit=LIMIT, dead_letter_max=100)
    assert processes.recover("q", ["other", "another"], b"").recovered == 2
    assert broker.client.exists("wakeup:{q}")
    assert broker.queues.sizes("q").unacked == 1
    assert broker.bodies("q") == [b"lost", b"lost too"]
    broker.check()
