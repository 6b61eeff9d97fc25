"""Limiters: a message waits for the limiter that it names, and holds up no other meanwhile."""

from __future__ import annotations

import time

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.arguments.limiters import Limiter, LimiterRule
from celery_redis_plus.broker.queues.limiters import set_limiter_rule, take, taker_of
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

KEYS = Keys().queue("q")


def limited(text):
    return {"x-limiter": text}


def get(channel, count, queue="q"):
    """Return the bodies of the next messages, which stay in work; None where none comes."""
    messages = [channel.basic_get(queue) for _ in range(count)]
    return [message and message.payload for message in messages]


def get_until(channel, count, queue="q"):
    """Return the bodies of the next messages, which stay in work, and wait for them."""
    return [wait_until(lambda: channel.basic_get(queue), 10).payload for _ in range(count)]


def check(broker_url, **options):
    """Return the rules that the broker breaks."""
    with BrokerAdmin(broker_url) as admin:
        return [violation.rule for violation in admin.checker(**options).run()]


def test_a_message_beyond_the_rate_waits_and_others_go_on(channel):
    declare(channel, "q")
    publish(channel, "q", "a1", "a2", "a3", headers=limited("a:1/m burst=2"))
    publish(channel, "q", "plain")
    assert get(channel, 4) == ["a1", "a2", "plain", None]


def test_a_message_runs_when_its_limiter_has_room(channel):
    declare(channel, "q")
    publish(channel, "q", "a1", "a2", headers=limited("a:1/s burst=1"))
    assert get(channel, 2) == ["a1", None]
    assert get_until(channel, 1) == ["a2"]


def test_keys_of_a_limiter_are_limited_each_by_itself(channel):
    declare(channel, "q")
    for key in ("c1", "c1", 'a "}é key=x', 'a "}é key=x', "c2"):
        publish(channel, "q", key, headers=limited(f"a:1/m key={key}"))
    assert get(channel, 4) == ["c1", 'a "}é key=x', "c2", None]


def test_a_limiter_holds_over_queues_and_as_a_property(channel):
    declare(channel, "q", "r")
    publish(channel, "q", "a1", headers=limited("a:1/m"))
    publish(channel, "r", "a2", **{"x-limiter": "a:1/m"})
    assert get(channel, 1) + get(channel, 1, "r") == ["a1", None]


def test_a_window_never_has_more(channel):
    declare(channel, "q")
    publish(channel, "q", *map(str, range(6)), headers=limited("a:2/s window"))
    times = []
    for _ in range(6):
        get_until(channel, 1)
        times.append(time.monotonic())
    assert min(later - earlier for earlier, later in zip(times, times[2:], strict=False)) > 0.95


def test_a_concurrency_frees_its_place_with_the_ack(channel):
    declare(channel, "q")
    publish(channel, "q", "a1", "a2", "a3", headers=limited("a:concurrency=2"))
    first = channel.basic_get("q")
    assert get(channel, 2) == ["a2", None]
    first.ack()
    assert get(channel, 2) == ["a3", None]


@pytest.mark.parametrize("rule", ["concurrency=2", "2/h burst=2", "2/h window"])
def test_a_claim_of_several_messages_takes_no_more_than_a_limiter_has(rule, channel):
    """At once: a place of a concurrency was given back whose message the same claim had not put into the index yet."""
    declare(channel, "q")
    publish(channel, "q", *map(str, range(5)), headers=limited(f"a:{rule}"))
    publish(channel, "q", "plain")
    inbox = Inbox(channel, "q", prefetch=10, ack=False)
    assert inbox.exactly(3) == ["0", "1", "plain"]


def test_a_costly_message_is_not_starved_by_another_queues_cheap_ones(channel):
    declare(channel, "q", "r")
    publish(channel, "q", *map(str, range(40)), headers=limited("a:4/s burst=4"))
    assert get(channel, 5) == ["0", "1", "2", "3", None]
    publish(channel, "r", "costly", headers=limited("a:4/s burst=4 cost=4"))
    cheap = 0

    def came():
        nonlocal cheap
        cheap += channel.basic_get("q") is not None
        return channel.basic_get("r")

    assert wait_until(came, 10).payload == "costly"
    assert cheap == 0
    # Then it is the others' turn for as many tokens.
    publish(channel, "r", "costly again", headers=limited("a:4/s burst=4 cost=4"))
    assert get(channel, 1, "r") == [None]
    assert get_until(channel, 1) == ["4"]


def test_every_costly_message_gets_its_tokens_beside_cheap_ones(connect):
    cheap, costly = connect().channel(), connect().channel()
    declare(cheap, "q", "r")
    publish(cheap, "q", *map(str, range(300)), headers=limited("a:20/s burst=10"))
    publish(cheap, "r", "c1", "c2", "c3", headers=limited("a:20/s burst=10 cost=10"))
    others, inbox = Inbox(cheap, "q", prefetch=4), Inbox(costly, "r", prefetch=1)

    def all_came():
        others.pump(0.01)
        inbox.pump(0.01)
        return len(inbox.bodies) == 3

    wait_until(all_came, 20, lambda: f"{inbox.bodies} {len(others.bodies)}")
    assert len(others.bodies) < 200


def test_tokens_are_booked_as_long_as_somebody_asks_for_them(channel):
    declare(channel, "q", "r")
    publish(channel, "q", "all", headers=limited("a:2/s burst=40 cost=40"))
    publish(channel, "r", "costly", headers=limited("a:2/s burst=40 cost=40"))
    assert get(channel, 1) + get(channel, 1, "r") == ["all", None]
    channel.queue_purge("r")
    publish(channel, "q", "cheap", headers=limited("a:2/s burst=40"))
    # Twenty seconds, were they booked until the costly one would have had them.
    assert get_until(channel, 1) == ["cheap"]


def test_places_of_vanished_messages_are_found_among_many(channel, redis_client):
    declare(channel, "q")
    limiter = Limiter.parse("a:concurrency=51")
    publish(channel, "q", *map(str, range(50)), headers=limited(str(limiter)))
    assert len(get(channel, 50)) == 50
    redis_client.zadd("limiter_places:{a}", {b"gone\0{q}\0001": time.time() * 1000})
    session = channel.session
    asks = wait_until(lambda: take(session.commands, session.keys, limiter, taker_of("q", "new", "1")) == 0, 10)
    assert asks
    assert redis_client.zcard("limiter_places:{a}") == 51


def test_a_rule_that_counts_otherwise_is_refused(channel):
    declare(channel, "q")
    publish(channel, "q", "a1", headers=limited("gpu:concurrency=40 key=c7"))
    assert get(channel, 1) == ["a1"]
    session = channel.session
    for limiter in ("gpu", "gpu:c7"):
        with pytest.raises(InvalidArgument, match=r"whose messages say 'concurrency=40'; allowed: a concurrency"):
            set_limiter_rule(session.commands, session.keys, limiter, LimiterRule.parse("1/s"))
    set_limiter_rule(session.commands, session.keys, "gpu", LimiterRule.parse("concurrency=1"))


@pytest.mark.parametrize("how", ["reject", "requeue"])
def test_a_concurrency_frees_its_place_with_every_end(how, channel):
    declare(channel, "q", "r")
    publish(channel, "q", "a1", headers=limited("a:concurrency=1"))
    publish(channel, "r", "a2", headers=limited("a:concurrency=1"))
    first = channel.basic_get("q")
    assert get(channel, 1, "r") == [None]
    getattr(first, how)()
    # The other queue's waits for the same limiter.
    assert get(channel, 1, "r") == ["a2"]


def test_a_concurrency_frees_its_place_while_a_failed_message_waits(channel):
    declare(channel, "q", arguments={"x-retry-policy": "constant first=3600000"})
    publish(channel, "q", "a1", "a2", headers=limited("a:concurrency=1"))
    first = channel.basic_get("q")
    assert get(channel, 1) == [None]
    first.requeue()
    assert get(channel, 1) == ["a2"]


def test_a_cost_takes_as_many_tokens(channel):
    declare(channel, "q")
    publish(channel, "q", "a1", headers=limited("a:1/h burst=10 cost=7"))
    publish(channel, "q", "a2", headers=limited("a:1/h burst=10 cost=4"))
    publish(channel, "q", "a3", headers=limited("a:1/h burst=10 cost=3"))
    # The third stands behind the second, which waits.
    assert get(channel, 2) == ["a1", None]


def test_priority_goes_first_and_then_who_came_first(channel):
    declare(channel, "q", arguments={"x-max-priority": 9})
    publish(channel, "q", "a1", "a2", "a3", headers=limited("a:20/s burst=1"))
    assert get(channel, 2) == ["a1", None]
    publish(channel, "q", "high", headers=limited("a:20/s burst=1"), priority=5)
    publish(channel, "q", "a4", headers=limited("a:20/s burst=1"))
    assert get_until(channel, 4) == ["high", "a2", "a3", "a4"]


def test_a_waiting_message_takes_no_place_of_the_prefetch(channel):
    declare(channel, "q")
    publish(channel, "q", *map(str, range(5)), headers=limited("a:1/h"))
    publish(channel, "q", "x", "y")
    inbox = Inbox(channel, "q", prefetch=2, ack=False)
    assert inbox.exactly(2) == ["0", "x"]


def test_waiting_messages_are_purged_deleted_cancelled_and_counted(channel, broker_url):
    declare(channel, "q")
    publish(channel, "q", "a1", "a2", "a3", headers=limited("a:1/h"))
    assert get(channel, 2) == ["a1", None]
    assert channel.queue_declare("q", passive=True).message_count == 2
    assert check(broker_url) == []
    assert channel.queue_purge("q") == 2
    publish(channel, "q", "a4", headers=limited("a:1/h"))
    assert get(channel, 1) == [None]
    channel.queue_delete("q")
    assert check(broker_url) == []


def test_a_message_of_a_group_lets_its_group_go_on(channel):
    declare(channel, "q", arguments={"x-group-concurrency": 1})
    publish(channel, "q", "a0", headers=limited("a:1/h"))
    assert get(channel, 1) == ["a0"]
    publish(channel, "q", "a1", headers={"x-message-group": "g", **limited("a:1/h")})
    publish(channel, "q", "a2", headers={"x-message-group": "g"})
    assert get(channel, 2) == ["a2", None]


def test_a_strict_group_waits_with_its_message(channel):
    declare(channel, "q", arguments={"x-group-concurrency": 1, "x-group-order": "strict"})
    publish(channel, "q", "a0", headers=limited("a:5/s burst=1"))
    publish(channel, "q", "a1", headers={"x-message-group": "g", **limited("a:5/s burst=1")})
    publish(channel, "q", "a2", headers={"x-message-group": "g"})
    assert get(channel, 2) == ["a0", None]
    message = wait_until(lambda: channel.basic_get("q"), 10)
    assert message.payload == "a1"
    message.ack()
    assert get(channel, 1) == ["a2"]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "text",
    [
        *("", "stripe", "stripe:", "stripe:100", "stripe:100/d", "a b:1/s", "x:1/s burst=0", "x:1/s window burst=2"),
        *("x:1/s cost=0", "x:1/s cost=2", "x:concurrency=0", "x:concurrency=2 cost=2", "x:concurrency=1.5", "x:1/s 2/s"),
        *("x:1.5/s window", "x:20000/s window", "x:1/s key=", "x:1/s rate=5", 7, True, f"x:1/s key={'k' * 257}"),
    ],
)
def test_what_names_no_limiter_is_refused(text, channel):
    declare(channel, "q")
    with pytest.raises(InvalidArgument, match=r"limiter.*allowed"):
        publish(channel, "q", "x", headers=limited(text))
