"""A queue with messages in each state, which are browsed; and what tells that this changed nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus import browse, counters
from celery_redis_plus.keys import Keys
from tests.support.checking import found
from tests.support.filling import fill
from tests.support.inbox import declare, publish
from tests.support.replies import hash_fields, sorted_set_members
from tests.support.slow_calls import slow_calls

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.keys import QueueKeys

#: What the server may take for one page.
MAX_US = 5_000
#: What heartbeats and sweeps write into a queue's record meanwhile.
MAINTAINED = {b"sweeper", b"lease", b"swept", b"next", b"grace", b"timeouts", b"newest"}


def fill_each_state(channel: Any) -> None:
    """Fill the queue `q`: three ready messages, two in each other state."""
    declare(channel, "q")
    publish(channel, "q", "died 1", "died 2", "held 1", "held 2")
    for outcome in ("reject", "reject", None, None):
        message = channel.basic_get("q")
        if outcome:
            getattr(message, outcome)()
    publish(channel, "q", "ready 2", "ready 3")
    publish(channel, "q", "ready 1", priority=9)
    publish(channel, "q", "later 2", headers={"x-delay": 90_000})
    publish(channel, "q", "later 1", headers={"x-delay": 80_000})
    channel.consumer_session.acknowledger.flush()


def standing(client: redis.Redis, of: QueueKeys) -> tuple[list[Any], dict[bytes, bytes]]:
    """Return what tells where each message is, and what happened in the queue; not when a living holder's lease ends."""
    places = [client.zrange(place, 0, -1, withscores=place != of.index) for place in (of.ready, of.delayed, of.index, of.dead)]
    return places, {name: value for name, value in hash_fields(client, of.meta).items() if name not in MAINTAINED}


def assert_browsing_changes_nothing(channel: Any, client: redis.Redis, count: int) -> None:
    """Fill `q` further, to `count` messages, browse them all, and compare the queue before and after."""
    of = Keys().queue("q")
    fill(client, of, of.ready, count * 7 // 10)
    fill(client, of, of.delayed, count - count * 7 // 10 - 4)
    before, counted = standing(client, of), counters("q", connection=channel)
    with slow_calls(client, MAX_US) as calls:
        browsed = [(one.state, one.tag) for one in browse("q", connection=channel)]
    assert calls.slow == {}
    assert calls.calls["list_messages"] > count // 100
    assert len(browsed) == count
    places = (("ready", of.ready), ("delayed", of.delayed), ("unacked", of.index), ("dead", of.dead))
    assert browsed == [(state, tag.decode()) for state, place in places for tag in sorted_set_members(client, place)]
    assert standing(client, of) == before
    assert counters("q", connection=channel) == counted
    violations = found(client, Keys())
    assert violations == [], violations
