"""The backlog of a transient queue: it stays while the queue is used, at little cost, and goes with the queue."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.broker.queues.queues import FREED_A_CALL, Queues
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance import transient_queues
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.transient_queues import TransientQueues
from tests.support.checking import found
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

#: More messages than one call passes over.
MANY = 3 * FREED_A_CALL + 1
HOUR_MS = 3_600_000


def expiring(name="q", ms=60_000):
    return kombu.Queue(name, expires=ms / 1000, durable=False)


def declare_expiring(channel, name="q", ms=60_000):
    expiring(name, ms)(channel).declare()
    return Queues(channel.session.commands, channel.session.keys, transient_ttl_s=300)


def expiries(redis_client, run):
    """Return how many keys are given a TTL while `run` runs."""
    redis_client.config_resetstat()
    run()
    return redis_client.info("commandstats")["cmdstat_pexpire"]["calls"]


def test_a_backlog_stays_although_no_pass_over_it_ends_within_the_life_of_the_unused_queue(channel, redis_client):
    queues = declare_expiring(channel, ms=3_000)
    publish(channel, "q", *range(MANY))
    until = time.monotonic() + 6.5
    while time.monotonic() < until:
        assert queues.touch_page("q", 0) >= 0
        time.sleep(0.1)
    assert len(redis_client.keys("message:{q}*")) == MANY
    assert Inbox(channel, expiring(ms=3_000)).drain(MANY) == list(range(MANY))


def test_a_message_is_renewed_once_in_a_quarter_of_its_ttl_however_many_consume_the_queue(connect, redis_client):
    channel = connect().channel()
    processes = [declare_expiring(channel), *(declare_expiring(connect().channel()) for _ in range(3))]
    publish(channel, "q", *range(MANY))

    def all_touch():
        for queues in processes * 5:
            assert queues.touch("q")

    calls, keys_a_call = len(processes) * 5, 10
    # The record besides, where its life is not as long already.
    of_records = range(calls + MANY // FREED_A_CALL + 1)
    assert expiries(redis_client, all_touch) - calls * keys_a_call - MANY in of_records
    assert expiries(redis_client, all_touch) - calls * keys_a_call in of_records
    ttl_ms = int(redis_client.hget("meta:{q}", "ttl"))
    redis_client.hincrby("meta:{q}", "renewed", -ttl_ms // 4)
    one = redis_client.keys("message:{q}*")[0]
    redis_client.pexpire(one, ttl_ms // 2)
    assert expiries(redis_client, all_touch) - calls * keys_a_call - MANY in of_records
    assert redis_client.pttl(one) > ttl_ms * 0.9


def test_all_keys_of_a_used_queue_outlive_its_record_several_times(channel, redis_client):
    queues = declare_expiring(channel, ms=2 * HOUR_MS)
    publish(channel, "q", "a")
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    channel.basic_get("q")
    assert queues.touch("q")
    left_ms = {key: redis_client.pttl(key) for key in redis_client.keys("*{q}*") if not key.startswith(b"producer:")}
    assert HOUR_MS < left_ms.pop(b"meta:{q}") <= 2 * HOUR_MS
    assert {b"delayed:{q}", b"messages_index:{q}"} <= left_ms.keys()
    # -2: the process that sweeps has taken a wake-up meanwhile.
    assert all(7 * HOUR_MS < ms <= 8 * HOUR_MS or ms == -2 for ms in left_ms.values()), left_ms


def test_a_queue_that_an_older_release_has_declared_is_renewed(channel, redis_client):
    queues = declare_expiring(channel, ms=60_000)
    publish(channel, "q", "a")
    # Its record tells by `ttl` alone how long the queue lives.
    redis_client.hdel("meta:{q}", "expires")
    redis_client.hset("meta:{q}", "ttl", 60_000)
    redis_client.pexpire("meta:{q}", 1_000)
    assert queues.touch("q")
    assert redis_client.pttl("meta:{q}") > 50_000
    assert found(redis_client, Keys()) == []


def test_what_an_expired_queue_leaves_ends_by_itself_where_no_process_lives(channel, redis_client):
    declare_expiring(channel, ms=300)
    publish(channel, "q", *range(3), "x" * 1_100_000)
    publish(channel, "q", "expires", expiration=60)
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    channel.basic_get("q").requeue()
    channel.basic_get("q")
    channel.close()
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    left_ms = {key: redis_client.pttl(key) for key in redis_client.keys("*{q}*")}
    assert left_ms
    # -1 is a key that stays.
    assert all(ms != -1 and ms <= HOUR_MS for ms in left_ms.values()), left_ms


@pytest.mark.parametrize("lasting", [False, True])
def test_a_queue_that_is_declared_again_has_no_messages_of_the_one_that_expired(connect, redis_client, lasting):
    channel = connect().channel()
    declare_expiring(channel, ms=300)
    publish(channel, "q", *range(MANY))
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    again = connect().channel()
    declare(again, "q") if lasting else declare_expiring(again)
    sizes = again.queue_sizes("q")
    assert (sizes.ready, sizes.delayed, sizes.unacked) == (0, 0, 0)
    assert redis_client.keys("message:{q}*") == []
    publish(again, "q", "new")
    assert again.basic_get("q").payload == "new"


def test_a_lasting_queue_whose_record_was_lost_keeps_its_messages_when_it_is_declared_again(connect, redis_client):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", *range(3))
    redis_client.delete("meta:{q}")
    again = connect().channel()
    declare(again, "q")
    assert Inbox(again, "q").drain(3) == [0, 1, 2]


def test_a_long_pass_over_one_queue_keeps_no_other_from_its_turn(channel, redis_client, monkeypatch):
    class OneLook:
        """A slice that is over after one page."""

        looks = 0

        @property
        def over(self):
            self.looks += 1
            return self.looks > 1

    monkeypatch.setattr(transient_queues, "Slice", OneLook)
    consumed = ConsumedQueues()
    for name, count in (("long", MANY), ("short", 1)):
        queues = declare_expiring(channel, name)
        publish(channel, name, *range(count))
        consumed.add(name, "a test", 60_000)
    redis_client.pexpire("meta:{short}", 5_000)
    transient = TransientQueues(queues, consumed, timeout_s=60)
    transient.run()
    assert redis_client.pttl("meta:{short}") <= 5_000
    transient.run()
    assert redis_client.pttl("meta:{short}") > 50_000
