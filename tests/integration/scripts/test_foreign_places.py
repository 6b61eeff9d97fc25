"""A key of another type in one place of a queue ends the work on that place alone: a pass of the sweep does all the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.event_log.settings import EventLogSettings

if TYPE_CHECKING:
    from tests.integration.scripts.workshop import Workshop

#: What a pass does with the queue that `fill` makes, an hour later.
WORK = frozenset({"promote", "recover", "expire", "clear outbox", "clear store", "empty trash"})
#: By the foreign place, the work that needs it.
NEEDS = {
    "ready": {"promote", "recover", "expire"},
    "delayed": {"promote"},
    "index": {"recover"},
    "expiry": {"expire"},
    "dead": {"expire", "clear store"},
    "dlx_outbox": {"clear outbox"},
    "trash": {"empty trash"},
    "wakeup": set[str](),
    "schedule_wakeup": set[str](),
    "events": set[str](),
    "events_meta": set[str](),
    "events_readers": set[str](),
}


def fill(shop: Workshop) -> None:
    """Fill the queue, have all of it be due, and add tags without messages and a message in the trash."""
    shop.queues = Queues(shop.commands, shop.keys, transient_ttl_s=3600, event_log=EventLogSettings(wanted=True))
    shop.fill()
    shop.client.zadd(shop.q.dlx_outbox, {"ghost": 1})
    shop.client.zadd(shop.q.dead, {"ghost": 1})
    shop.client.zadd(shop.q.trash, {"1": 1})
    shop.client.zadd(shop.q.trash + b":1", {"purged": 1})
    shop.client.hset(shop.q.message + b"purged", "payload", "{}\nx")
    shop.clock.advance(3_600_000)


def work_done(shop: Workshop, foreign: str) -> set[str]:
    """Return the work that a pass has done, by what it leaves."""
    mortal = [key for key in shop.client.keys("message:{q}:*") if b"mortal" in (shop.client.hget(key, "payload") or b"")]
    left = {
        "promote": lambda: shop.client.zcard(shop.q.delayed),
        "recover": lambda: shop.client.zcard(shop.q.index),
        "expire": lambda: not any(shop.client.hget(key, "died") for key in mortal) or shop.client.exists(shop.q.expiry),
        "clear outbox": lambda: shop.client.zscore(shop.q.dlx_outbox, "ghost"),
        "clear store": lambda: shop.client.zscore(shop.q.dead, "ghost"),
        "empty trash": lambda: shop.client.exists(shop.q.message + b"purged"),
    }
    return {kind for kind in WORK - NEEDS[foreign] if not left[kind]()}


@pytest.mark.parametrize("foreign", sorted(NEEDS))
def test_a_pass_does_all_work_that_does_not_need_a_foreign_place(shop: Callable[[], Workshop], foreign, caplog):
    one = shop()
    fill(one)
    key = getattr(one.q, foreign)
    one.client.delete(key)
    one.client.set(key, "foreign")
    one.sweep()
    assert work_done(one, foreign) == WORK - NEEDS[foreign]
    assert int(one.client.hget(one.q.meta, "swept")) == one.clock.now_ms
    for _ in range(3):
        one.clock.advance(5000)
        one.sweep()
    told = [line for line in caplog.messages if "cannot be swept" in line]
    assert len(told) == (foreign != "schedule_wakeup")
    assert [line for line in told if key.decode() not in line] == []
    # Only what is due later.
    assert one.sweeper.next_run_at > 0


def test_a_message_that_cannot_die_keeps_no_other_from_recovery(shop: Callable[[], Workshop]):
    one = shop()
    one.fill()
    first = one.held[0]
    one.client.hset(one.q.message + first.tag.encode(), mapping={"failed": 5, "begun": first.claim})
    one.client.delete(one.q.dead)
    one.client.set(one.q.dead, "foreign")
    one.clock.advance(31_000)
    one.sweep()
    assert one.client.zcard(one.q.index) == 1
    assert b"held2" in [message.body for message in one.claim()]
    one.client.delete(one.q.dead)
    one.clock.advance(5000)
    one.sweep()
    assert one.client.zcard(one.q.dead) == 1


def test_a_message_that_cannot_die_keeps_no_other_from_its_due_time(shop: Callable[[], Workshop]):
    one = shop()
    one.fill()
    one.client.hset(one.q.message + one.tag("delayed").encode(), "expires", 1)
    one.client.delete(one.q.dead)
    one.client.set(one.q.dead, "foreign")
    one.clock.advance(21_000)
    one.sweep()
    assert one.client.zcard(one.q.delayed) == 1
    assert b"later2" in [message.body for message in one.claim()]


def test_a_queue_with_a_foreign_place_is_not_swept_without_a_pause(shop: Callable[[], Workshop]):
    one = shop()
    one.fill()
    one.acknowledger.settle(one.holding(one.held), Settlement.ACK)
    one.clock.advance(3_600_000)
    for place in ("delayed", "expiry", "trash", "dlx_outbox", "dead"):
        key = getattr(one.q, place)
        one.client.delete(key)
        one.client.set(key, "foreign")
    one.sweep()
    calls = one.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for _ in range(10):
        one.sweeper.run()
    assert one.client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls <= 1


@pytest.mark.parametrize("how", ["REQUEUE", "recover"])
def test_a_held_message_that_cannot_die_keeps_no_other_from_going_back(shop: Callable[[], Workshop], how):
    one = shop()
    one.fill(**{"x-delivery-limit": 5})
    first, second = one.held
    one.client.hset(one.q.message + first.tag.encode(), mapping={"failed": 5, "begun": first.claim})
    one.client.delete(one.q.dead)
    one.client.set(one.q.dead, "foreign")
    if how == "REQUEUE":
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            one.settle(how)
    else:
        one.run("recover_sessions", one.q.consumer_keys, "", 100, 5, 5, "holder")
    assert one.client.zrange(one.q.index, 0, -1) == [first.tag.encode()]
    assert second.tag in [message.tag for message in one.claim()]
    one.client.delete(one.q.dead)
    one.clock.advance(60_000)
    one.sweep()
    assert one.client.zrange(one.q.dead, 0, -1) == [first.tag.encode()]
