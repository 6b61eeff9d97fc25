"""Messages with an `x-deduplication-id` that take the place of a waiting one."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare
from tests.support.invariants import violations
from tests.support.lost_replies import LostReplies
from tests.support.stored import keys_of, now_ms
from tests.support.waiting import wait_until

KEYS = keys_of("q")


def send(channel, body, *, priority=0, expiration=None, task=None, **headers):
    """Publish a message that replaces a waiting one of the same `task`; without one, any that has none."""
    of = {"x-deduplication-id": "one", "x-deduplication-scope": "until-started", "x-deduplication-conflict": "replace"}
    of |= {f"x-{key.replace('_', '-')}": value for key, value in headers.items()}
    if task:
        of |= {"id": task, "task": "any"}
    return kombu.Producer(channel).publish(
        body, routing_key="q", headers=of, retry=True, priority=priority, expiration=expiration
    )  # fmt: skip


@pytest.fixture
def channel(connect):
    channel = connect().channel()
    declare(channel, "q")
    return channel


def sizes(channel):
    found = channel.queue_sizes("q")
    return found.ready, found.delayed, found.unacked


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}, {"x-max-length-bytes": 9_000_000}, {"x-group-concurrency": 1}])
@pytest.mark.parametrize("size", [1, 1_100_000])
def test_the_latest_message_takes_the_place_of_a_ready_or_delayed_one(size, arguments, channel, redis_client):
    channel.queue_delete("q")
    declare(channel, "q", arguments=arguments)
    group = {"message_group": "g"} if "x-group-concurrency" in arguments else {}
    for delay in (600_000, 0, 0, 600_000, 0):
        assert send(channel, f"{delay}" * size, deduplication_delay=delay, **group) is None
        assert sizes(channel) == ((0, 1, 0) if delay else (1, 0, 0))
    send(channel, "last", **group)
    assert violations(redis_client) == []
    assert list(redis_client.scan_iter("message:*")) == [KEYS.message + tag for tag in redis_client.zrange(KEYS.ready, 0, -1)]
    assert Inbox(channel, kombu.Queue("q", durable=True, queue_arguments=arguments)).drain(1) == ["last"]
    wait_until(lambda: not list(redis_client.scan_iter("message:*")))
    if "x-max-length-bytes" in arguments:
        assert redis_client.hget(KEYS.meta, "bytes") == b"0"


def test_each_one_waits_anew_and_none_longer_than_the_longest_wait(channel, redis_client):
    def due():
        [(_, at)] = redis_client.zrange(KEYS.delayed, 0, -1, withscores=True)
        return at

    began = time.time() * 1000
    send(channel, 1, deduplication_delay=60_000, deduplication_max_wait=60_050)
    first = due()
    assert 60_000 <= first - began < 70_000
    wait_until(lambda: time.time() * 1000 > began + 30)
    send(channel, 2, deduplication_delay=60_000, deduplication_max_wait=60_050)
    assert first < due() <= first + 50
    wait_until(lambda: time.time() * 1000 > began + 200)
    send(channel, 3, deduplication_delay=60_000, deduplication_max_wait=60_050)
    assert due() == first + 50
    # Nothing is left of the longest wait.
    send(channel, 4, deduplication_delay=60_000, deduplication_max_wait=1)
    assert sizes(channel) == (1, 0, 0)
    assert Inbox(channel, "q").drain(1) == [4]


def test_a_claimed_one_is_not_replaced_and_the_next_one_begins_a_new_wait(channel, connect):
    send(channel, 1)
    inbox = Inbox(connect().channel(), "q", ack=False)
    inbox.drain(1)
    for number in (2, 3):
        send(channel, number, deduplication_delay=600_000)
        assert sizes(channel) == (0, 1, 1)


def test_only_a_message_of_the_same_task_is_replaced(channel):
    assert send(channel, 1, task="a") is None
    standing = send(channel, 2, task="b")
    assert sizes(channel) == (1, 0, 0)
    assert send(channel, 3, task="a", deduplication_conflict="replace-only") is None
    # The one that was named has been replaced meanwhile.
    assert standing != send(channel, 4, task="b", deduplication_conflict="replace-only") != ""
    assert Inbox(channel, "q").drain(1) == [3]
    wait_until(lambda: sizes(channel) == (0, 0, 0))
    # None waits: nothing is stored.
    assert send(channel, 5, task="a", deduplication_conflict="replace-only") == ""
    assert sizes(channel) == (0, 0, 0)


@pytest.mark.parametrize(("scope", "stored"), [("until-acked", False), ("ttl", False), ("until-claimed", True)])
def test_one_in_work_stands_as_long_as_its_scope_says(scope, stored, channel, connect):
    for number in (1, 2):
        assert send(channel, number, deduplication_scope=scope) is None
    inbox = Inbox(connect().channel(), "q", ack=False)
    assert inbox.drain(1) == [2]
    assert (send(channel, 3, deduplication_scope=scope) is None) is stored


def test_a_window_is_not_extended(channel, redis_client):
    send(channel, 1, deduplication_scope="ttl", deduplication_ttl=50_000)
    [key] = redis_client.scan_iter("dedup*")
    redis_client.pexpire(key, 20_000)
    send(channel, 2, deduplication_scope="ttl", deduplication_ttl=50_000)
    assert redis_client.pttl(key) <= 20_000


def test_the_latest_priority_and_expiry_count(channel, redis_client):
    send(channel, 1, priority=3, expiration=100)
    send(channel, 2, priority=9)
    kombu.Producer(channel).publish("between", routing_key="q", priority=6)
    assert redis_client.zcard(KEYS.expiry) == 0
    assert Inbox(channel, "q").drain(2) == [2, "between"]


def test_one_that_was_moved_runs_where_it_is(channel, broker_url, redis_client):
    declare(channel, "r")
    send(channel, 1, deduplication_delay=600_000)
    [tag] = redis_client.zrange(KEYS.delayed, 0, -1)
    with BrokerAdmin(broker_url) as admin:
        admin.messages.move(tag.decode(), "r", "q")
    send(channel, 2, deduplication_delay=600_000)
    assert sizes(channel) == (0, 1, 0)
    assert channel.queue_sizes("r").delayed == 1


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head", "block", "reject-publish-dlx"])
@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-max-length-bytes": 3000}])
def test_a_full_queue_takes_what_makes_its_own_room(limit, overflow, connect):
    channel, padding = connect(publish_timeout=1).channel(), "." * 1000
    declare(channel, "q", arguments={**limit, "x-overflow": overflow})
    kombu.Producer(channel).publish(f"other{padding}", routing_key="q")
    for number in range(3):
        send(channel, f"{number}{padding}")
        assert sizes(channel) == (2, 0, 0)
    queue = kombu.Queue("q", durable=True, queue_arguments={**limit, "x-overflow": overflow})
    assert Inbox(channel, queue).drain(2) == [f"other{padding}", f"2{padding}"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_a_lost_answer_neither_loses_nor_doubles(arguments, connect, monkeypatch):
    looker = connect().channel()
    declare(looker, "q", arguments=arguments)
    replies = LostReplies(monkeypatch)
    for number in range(3):
        replies.lose(2)
        assert send(connect().channel(), number) is None
        assert sizes(looker) == (1, 0, 0)
    assert replies.lost == 6
    queue = kombu.Queue("q", durable=True, queue_arguments=arguments)
    assert Inbox(looker, queue).drain(1) == [2]
    wait_until(lambda: sizes(looker) == (0, 0, 0))
    replies.lose()
    assert send(connect().channel(), 3, deduplication_conflict="replace-only") == ""


@pytest.mark.parametrize(
    ("header", "value"), [("conflict", "latest"), ("delay", -1), ("delay", "5s"), ("max_wait", 0), ("max_wait", True)]
)
def test_what_the_headers_cannot_be_is_refused(header, value, channel):
    with pytest.raises(InvalidArgument, match=rf"header 'x-deduplication-{header.replace('_', '-')}' is {value!r}; allowed: "):
        send(channel, 1, **{f"deduplication_{header}": value})
    assert sizes(channel) == (0, 0, 0)


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}, {"x-priority-ageing": 60_000}, {"x-group-concurrency": 1}])
def test_a_ready_message_keeps_its_place_however_often_it_is_replaced(arguments, channel, redis_client):
    """Calls that go on would push it back behind a busy queue for ever."""
    channel.queue_delete("q")
    declare(channel, "q", arguments=arguments)
    group = {"message_group": "g"} if "x-group-concurrency" in arguments else {}
    producer = kombu.Producer(channel)
    for body in ("before", "one", "behind"):
        if body == "one":
            send(channel, body, **group)
        else:
            producer.publish(body, routing_key="q", headers={"x-message-group": "g"})
        # Within a millisecond the new one comes last.
        began = now_ms(redis_client)
        wait_until(lambda began=began: now_ms(redis_client) > began)
    for number in range(3):
        send(channel, f"again {number}", **group)
    assert violations(redis_client) == []
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments=arguments), prefetch=1)
    assert inbox.drain(3) == ["before", "again 2", "behind"]
