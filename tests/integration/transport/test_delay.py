"""Messages that are not for now: never early, soon after their time, at any backlog, without a loop of the client's own."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import kombu
import pytest

from celery_redis_plus.errors import InvalidArgument, InvalidEta
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import keys_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds; lateness is measured by the benchmark, here it only has to be no accident.
PUNCTUAL_S = 1.0


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


FORMS: dict[str, Callable[[float], dict[str, Any]]] = {
    "header eta": lambda s: {"headers": {"eta": in_s(s)}},
    "property eta, datetime": lambda s: {"eta": datetime.now(UTC) + timedelta(seconds=s)},
    "property eta, unix seconds": lambda s: {"eta": time.time() + s},
    "header x-delay": lambda s: {"headers": {"x-delay": round(s * 1000)}},
}


@pytest.mark.parametrize("form", FORMS)
def test_an_idle_consumer_gets_it_when_due_and_not_before(channel, form):
    inbox = Inbox(channel, "q")
    due = time.time() + 0.7
    publish(channel, "q", "later", **FORMS[form](0.7))
    publish(channel, "q", "now")
    assert inbox.drain(2) == ["now", "later"]
    # The start of the due millisecond, rounded up; the wall clock read before the call is the lower bound.
    assert due - 0.001 <= inbox.times[1] <= due + PUNCTUAL_S
    assert not inbox.messages[1].delivery_info["redelivered"]


@pytest.mark.parametrize("delay_ms", [1, 400])
def test_a_delay_counts_from_no_moment_before_its_publish(channel, redis_client, delay_ms):
    declare(channel, "q")
    for _ in range(30):
        published_ms = time.time() * 1000
        publish(channel, "q", "x", headers={"x-delay": delay_ms})
        (due_ms,) = {due for _, due in redis_client.zrange("delayed:{q}", 0, -1, withscores=True)} or {published_ms + delay_ms}
        assert published_ms + delay_ms <= due_ms <= published_ms + delay_ms + 1000 * PUNCTUAL_S
        channel.queue_purge("q")


@pytest.mark.parametrize(
    "properties", [{"headers": {"eta": in_s(-60)}}, {"headers": {"x-delay": 0}}, {"headers": {"eta": None}}, {"eta": 0}]
)
def test_what_is_due_already_is_ready_at_once(channel, properties):
    declare(channel, "q")
    publish(channel, "q", "now", **properties)
    assert channel.queue_sizes("q").ready == 1
    assert Inbox(channel, "q").drain(1) == ["now"]


def test_a_sooner_message_after_a_later_one_is_on_time(channel):
    inbox = Inbox(channel, "q")
    for delay in (5.0, 0.9, 0.6, 0.3):
        publish(channel, "q", delay, headers={"x-delay": int(delay * 1000)})
    start = time.time()
    assert inbox.drain(3) == [0.3, 0.6, 0.9]
    for delay, came in zip((0.3, 0.6, 0.9), inbox.times, strict=True):
        assert start + delay - 0.05 <= came <= start + delay + PUNCTUAL_S


def publish_ahead(channel, count: int, **properties: Callable[[int], Any]) -> tuple[float, list[float]]:
    """Publish messages that are due 10 ms apart, in seven groups, and all are published before the first one is due.

    Returns when that is, and the eta of each.
    """
    lead_s = 0.5
    while True:
        due = time.time() + lead_s
        etas = [due + number % 7 / 100 for number in range(count)]
        for number, eta in enumerate(etas):
            publish(channel, "q", number, eta=eta, **{name: value(number) for name, value in properties.items()})
        if time.time() < due:
            return due, etas
        # The machine is busy.
        channel.queue_purge("q")
        lead_s *= 2


def test_many_that_are_due_together_come_in_the_order_of_their_etas_without_a_pause(channel):
    declare(channel, "q")
    due, etas = publish_ahead(channel, 700)
    inbox = Inbox(channel, "q", prefetch=1)
    began = max(due, time.time())
    assert inbox.drain(700, 30) == sorted(range(700), key=lambda number: (etas[number], number))
    assert due - 0.001 <= inbox.times[0] <= began + PUNCTUAL_S
    assert max(later - earlier for earlier, later in pairwise(inbox.times)) <= PUNCTUAL_S


def test_what_became_due_before_anybody_came_is_taken_by_priority_and_then_by_eta(channel):
    declare(channel, "q")
    _, etas = publish_ahead(channel, 70, priority=lambda number: number % 3)
    wait_until(lambda: time.time() > max(etas) + 0.001)
    expected = sorted(range(70), key=lambda number: (-(number % 3), etas[number], number))
    assert Inbox(channel, "q", prefetch=1).drain(70) == expected


def test_far_etas_do_not_delay_near_ones(channel, redis_client):
    declare(channel, "q")
    publish(channel, "q", "far", headers={"x-delay": 3_600_000})
    # 50,000 more of the kind that the publish script makes, without 50,000 round trips.
    far_ms = int(time.time() * 1000) + 7_200_000
    keys = keys_of("q")
    with redis_client.pipeline(transaction=False) as pipeline:
        for number in range(20_000):
            tag = f"far{number:05}"
            pipeline.zadd(keys.delayed, {tag: far_ms + number})
            pipeline.hset(keys.message + tag.encode(), mapping={"payload": "{}\n", "score": 255 * 10**13 + far_ms + number})
        pipeline.execute()
    inbox = Inbox(channel, "q")
    due = time.time() + 0.5
    publish(channel, "q", "near", headers={"x-delay": 500})
    assert inbox.drain(1) == ["near"]
    assert due - 0.001 <= inbox.times[0] <= due + PUNCTUAL_S
    assert inbox.rest() == ["near"]


def test_a_consumer_that_comes_later_finds_what_became_due_before(connect, redis_client):
    publisher = connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", "early bird", headers={"x-delay": 50})
    [(_, due_ms)] = redis_client.zrange("delayed:{q}", 0, 0, withscores=True)
    wait_until(lambda: time.time() * 1000 > due_ms)
    assert Inbox(connect().channel(), "q").drain(1) == ["early bird"]


def test_another_consumer_takes_over_when_the_sweeping_one_leaves(connect):
    first, second = connect(), connect()
    inbox = Inbox(first.channel(), "q")
    other = Inbox(second.channel(), "q")
    publish(first.default_channel, "q", "later", headers={"x-delay": 600})
    inbox.rest(0.05)
    first.close()
    assert other.drain(1) == ["later"]


def test_delayed_messages_count_neither_as_ready_nor_against_the_prefetch(channel):
    inbox = Inbox(channel, "q", prefetch=1, ack=False)
    for number in range(5):
        publish(channel, "q", number, headers={"x-delay": 3_600_000})
    publish(channel, "q", "now")
    assert inbox.drain(1) == ["now"]
    assert channel.queue_declare("q", passive=True).message_count == 0
    sizes = channel.queue_sizes("q")
    assert (sizes.ready, sizes.delayed, sizes.unacked) == (0, 5, 1)


def test_basic_get_sees_a_delayed_message_only_when_it_is_due(channel):
    declare(channel, "q")
    start = time.monotonic()
    publish(channel, "q", "later", headers={"x-delay": 400})
    assert channel.basic_get("q") is None
    message = wait_until(lambda: channel.basic_get("q", no_ack=True), timeout_s=6)
    # The server counts from the millisecond that it is in.
    assert time.monotonic() - start >= 0.399
    assert message.payload == "later"


@pytest.mark.parametrize(
    "properties",
    [
        *({"headers": {"eta": eta}} for eta in ("soon", "2030-13-01T00:00:00", True, ["2030"], -1, "1969-12-31T23:59:59Z")),
        *({"eta": eta} for eta in (float("nan"), float("inf"), "tomorrow", -5)),
        *({"headers": {"x-delay": delay}} for delay in ("1h", -1, float("nan"), 10**30, True)),
    ],
    ids=repr,
)
def test_a_bad_time_is_refused_and_nothing_is_stored(channel, properties):
    declare(channel, "q")
    with pytest.raises(InvalidEta):
        publish(channel, "q", "bad", **properties)
    publish(channel, "q", "good")
    assert Inbox(channel, "q").rest() == ["good"]


def test_a_naive_eta_is_utc(channel):
    inbox = Inbox(channel, "q")
    due = time.time() + 0.4
    naive = (datetime.now(UTC) + timedelta(seconds=0.4)).replace(tzinfo=None)
    kombu.Producer(channel).publish("naive", routing_key="q", headers={"eta": naive.isoformat()})
    assert inbox.drain(1) == ["naive"]
    assert due - 0.01 <= inbox.times[0] <= due + PUNCTUAL_S


@pytest.mark.parametrize(("kind", "binding", "key"), [("direct", "k", "k"), ("topic", "a.#", "a.b"), ("fanout", "", "any")])
def test_a_delayed_message_exchange_routes_as_its_argument_says_and_delays(channel, kind, binding, key):
    exchange = kombu.Exchange("delayed", "x-delayed-message", durable=True, arguments={"x-delayed-type": kind})
    for queue in ("q", "r"):
        kombu.Queue(queue, exchange, routing_key=binding, durable=True)(channel).declare()
    kombu.Queue("other", exchange, routing_key="other", durable=True)(channel).declare()
    due = time.time() + 0.4
    producer = kombu.Producer(channel, exchange, routing_key=key)
    producer.publish("later", headers={"x-delay": 400})
    producer.publish("now")
    sizes = [channel.queue_sizes(queue) for queue in ("q", "r", "other")]
    assert [(size.ready, size.delayed) for size in sizes] == [(1, 1), (1, 1), (1, 1) if kind == "fanout" else (0, 0)]
    inbox = Inbox(channel, "q")
    assert inbox.drain(2) == ["now", "later"]
    assert inbox.times[1] >= due - 0.001


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("x-delayed-message", {}, "'x-delayed-type' of exchange 'e' is None; allowed are 'direct', 'fanout', 'headers', 'topic'"),
        ("x-delayed-message", {"x-delayed-type": "x-delayed-message"}, "'x-delayed-type' of exchange 'e'"),
        ("x-random", {}, "type of exchange 'e' is 'x-random'; allowed are 'direct', .*'x-delayed-message'"),
    ],
)
def test_an_exchange_that_could_not_route_is_refused_when_it_is_declared(channel, kind, arguments, said):
    with pytest.raises(InvalidArgument, match=said):
        kombu.Exchange("e", kind, arguments=arguments)(channel).declare()
    assert "e" not in channel.get_exchanges()
