"""The trash: sets of removed messages, each moved by one RENAME however large, and freed in pages."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.queues.queues import FREED_A_CALL
from celery_redis_plus.scripts import script
from tests.support.invariants import trashed

LATER = 9 * 10**12


def fill(broker, queue, count, *, delayed=0):
    broker.publish(queue, *(b"r%d" % number for number in range(count)))
    broker.publish(queue, *(b"d%d" % number for number in range(delayed)), eta=LATER)


def delete_and_die(broker, queue):
    """Delete the queue, and die before any message is freed."""
    assert broker.queues._delete(queue)[0]  # noqa: SLF001


def purge_and_die(broker, queue):
    of = broker.keys.queue(queue)
    return broker.commands.call(script("purge"), of.purge)


def calls(client):
    return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}


def left(broker, queue="q"):
    """Return the queue's keys, but for what vanishes by itself: what publishers have left, and the wake-up of the sweep."""
    of = broker.keys.queue(queue)
    return sorted(key for key in broker.client.keys(f"*{{{queue}}}*") if not key.startswith((of.producer, of.schedule_wakeup)))


@pytest.mark.parametrize("count", [10, 300])
def test_a_delete_costs_the_same_however_many_messages_there_are(broker, count):
    broker.declare("q")
    fill(broker, "q", count, delayed=count)
    broker.claim("q", credit=count // 2)
    broker.client.config_resetstat()
    delete_and_die(broker, "q")

    seen = calls(broker.client)
    assert seen.get("zunionstore", 0) == 0
    assert seen["rename"] == 3
    assert sum(seen.values()) < 40
    assert len(trashed(broker.client, broker.keys.queue("q"))) == 2 * count


def test_a_second_purge_leaves_the_trash_of_the_first_as_it_is(broker):
    broker.declare("q")
    for count in (5, 7):
        fill(broker, "q", count, delayed=1)
        broker.client.config_resetstat()
        assert purge_and_die(broker, "q") == count + 1
        assert "zunionstore" not in calls(broker.client)

    assert broker.client.zcard(broker.keys.queue("q").trash) == 4
    assert len(trashed(broker.client, broker.keys.queue("q"))) == 14
    assert broker.queues.purge("q") == 0
    assert left(broker) == [b"meta:{q}"]


def test_the_trash_is_freed_in_pages(broker):
    broker.declare("q")
    fill(broker, "q", FREED_A_CALL + 5, delayed=3)
    delete_and_die(broker, "q")

    assert [broker.queues.free_page("q") for _ in range(4)] == [FREED_A_CALL, 5, 3, 0]
    assert left(broker) == []


def test_a_queue_declared_anew_keeps_its_messages_while_the_trash_of_the_first_is_freed(broker):
    broker.declare("q")
    fill(broker, "q", 4, delayed=2)
    broker.claim("q", credit=1)
    delete_and_die(broker, "q")
    broker.declare("q")
    fill(broker, "q", 3, delayed=2)
    assert len(broker.claim("q", credit=1)) == 1
    assert broker.queues.free_page("q") == 3
    delete_and_die(broker, "q")
    broker.declare("q")
    broker.publish("q", b"stays")

    broker.queues.empty_trash("q")
    assert broker.bodies("q") == [b"stays"]
    assert not broker.client.exists(broker.keys.queue("q").trash)
    broker.check()


def test_a_number_without_a_set_is_passed_over(broker):
    of = broker.keys.queue("q")
    broker.declare("q")
    broker.client.zadd(of.trash, {"1": 1, "2": 2})
    fill(broker, "q", 2)
    assert broker.queues.purge("q") == 2
    assert left(broker) == [b"meta:{q}"]
