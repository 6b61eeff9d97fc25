"""`celery-redis-plus why` on a real server: each staged cause is named, and what is named is true."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.admin.explanation.causes import DEATHS
from celery_redis_plus.admin.explanation.explain import Rate
from celery_redis_plus.broker.queues.audit import Actor, acting
from celery_redis_plus.keys import Keys
from tests.support.events import events_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

HERE = f"{socket.gethostname()}:{os.getpid()}"


def task(channel, name, queue="q", **properties):
    publish(channel, queue, name, headers={"task": "shop.pay", "id": name, **properties.pop("headers", {})}, **properties)


def consuming(connect, queue="q", **options):
    """Return an inbox that takes one message at a time and settles none."""
    arguments = options.pop("arguments", None)
    entity = kombu.Queue(queue, durable=True, queue_arguments=arguments, no_declare=True)
    return Inbox(connect(**options).channel(), entity, ack=False, prefetch=1)


@pytest.fixture
def why(cli):
    """Explain a task: its causes by their kinds, and all else under None."""

    def explain(task_id, *arguments):
        told = cli("why", task_id, "--sample", "0", "--json", *arguments).json
        return {**{cause["kind"]: cause for cause in told["causes"]}, None: told}

    return explain


def test_a_message_waits_behind_those_of_a_higher_priority_and_those_that_came_earlier(cli, channel, why):
    declare(channel, "q")
    for number, priority in enumerate((9, 9, 5, 5, 5, 1)):
        task(channel, f"t{number}", priority=priority)
    found = why("t4")
    assert found["behind"]["values"] == {"before": 4, "higher_priority": 2, "earlier": 2}
    assert found["behind"]["text"] == "4 messages are before it: 2 of a higher priority, 2 that came earlier"
    assert found["no_consumer"]["text"] == "queue 'q' has no live consumer"
    assert found[None]["turn"] == "not before its queue has a consumer"
    assert "behind" not in why("t0")


def test_a_message_behind_others_of_a_queue_whose_messages_age(channel, why):
    declare(channel, "q", arguments={"x-priority-ageing": 60_000})
    task(channel, "first", priority=9)
    task(channel, "second", priority=1)
    assert why("second")["behind"]["values"] == {"before": 1, "higher_priority": None}


def test_a_paused_queue_names_who_paused_it_why_and_until_when(channel, connect, why, broker_url):
    declare(channel, "q")
    task(channel, "t")
    inbox = consuming(connect, "q")
    inbox.drain(1)
    task(channel, "waits")
    with BrokerAdmin(broker_url) as admin, acting(Actor("ada", "api", "here")):
        admin.pause("q", "the database moves", for_s=3_600)
        found = why("waits")
        assert found["paused"]["text"].startswith("queue 'q' is paused by ada since 20")
        assert found["paused"]["text"].endswith(": the database moves")
        assert found["paused"]["values"]["until"] is not None
        admin.pause("q", "for good")
        found = why("waits")
        assert found["paused"]["text"].endswith(", until it is resumed: for good")
        assert found[None]["turn"] == "not before its queue is resumed"
        admin.resume("q")
    assert "paused" not in why("waits")


def test_a_pause_that_is_over_is_no_cause(channel, why, broker_url, redis_client):
    declare(channel, "q")
    task(channel, "t")
    with BrokerAdmin(broker_url) as admin:
        admin.pause("q", "short", for_s=3_600)
    redis_client.hset(Keys("").queue("q").meta, "paused_until", 1)
    assert "paused" not in why("t")


def test_busy_consumers_are_named_with_what_they_hold(channel, connect, why):
    declare(channel, "q")
    task(channel, "t")
    consuming(connect).drain(1)
    task(channel, "waits")
    found = why("waits")
    assert found["busy"]["values"]["held"] == 1
    assert found["busy"]["text"].startswith("1 consumer(s) hold 1 message(s) of the queue")
    assert "no_consumer" not in found
    assert "behind" not in found


def test_a_limit_of_unacked_messages_holds_a_message_up(channel, connect, why):
    declare(channel, "q", arguments={"x-max-unacked": 1})
    task(channel, "t")
    inbox = consuming(connect)
    inbox.drain(1)
    task(channel, "waits")
    consuming(connect)
    assert why("waits")["max_unacked"]["values"] == {"unacked": 1, "max_unacked": 1}
    inbox.messages[0].ack()
    wait_until(lambda: inbox.pump(0.01) or "max_unacked" not in why("waits") or why("waits")[None]["state"] == "PROCESSING")


def test_a_rate_limit_holds_a_message_up(channel, connect, why):
    declare(channel, "q", arguments={"x-rate-limit": "1/m"})
    task(channel, "t")
    consuming(connect).drain(1)
    task(channel, "waits")
    found = why("waits")["rate_limit"]
    assert found["values"]["rate_per_s"] == pytest.approx(1 / 60)
    assert 0 < found["values"]["next_in_s"] <= 60


def test_a_queue_with_a_single_active_consumer_names_that_one(channel, connect, why):
    declare(channel, "q", arguments={"x-single-active-consumer": True})
    task(channel, "t")
    consuming(connect).drain(1)
    consuming(connect)
    task(channel, "waits")
    text = why("waits")["single_active"]["text"]
    assert text.startswith(f"of the queue's 2 consumers only the active one gets messages: {HERE}, which holds 1 message(s)")


def test_an_exclusive_consumer_is_named(channel, connect, why):
    declare(channel, "q")
    task(channel, "t")
    got = []
    alone = connect().channel()
    alone.basic_qos(0, 1, False)
    alone.basic_consume("q", False, got.append, "me", arguments=None, exclusive=True)
    wait_until(lambda: _pumped(alone) or got)
    task(channel, "waits")
    assert why("waits")["exclusive"]["text"].startswith(f"one consumer has the queue alone: {HERE}")


def _pumped(channel):
    with suppress(TimeoutError):
        channel.connection.client.drain_events(timeout=0.05)


def test_a_delayed_message_tells_when_it_is_due(channel, why):
    declare(channel, "q")
    task(channel, "later", headers={"x-delay": 7_200_000})
    found = why("later")
    assert 7_100 < found["due"]["values"]["in_s"] <= 7_200
    assert found["due"]["text"].startswith("it is due in 2.0 h, at 20")
    assert "retry" not in found


def test_a_debounced_message_tells_that_newer_ones_take_its_place(connect, why, redis_client):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "q")
    of = {"x-deduplication-id": "one", "x-deduplication-scope": "until-started", "x-deduplication-conflict": "replace"}
    for _ in range(2):
        task(channel, "t", headers={**of, "x-deduplication-delay": 5_000, "x-deduplication-max-wait": 60_000})
    found = why("t")["debounced"]
    assert 0 < found["values"]["in_s"] <= 5
    assert "until then a newer one takes its place (debounce); the first came 0" in found["text"]
    [tag] = redis_client.zrange(Keys().queue("q").delayed, 0, -1)
    told = [why(one) for one in {event.id for event in events_of(redis_client, Keys(), "q")} if one != tag.decode()]
    assert [one["gone"]["values"]["reason"] for one in told] == ["replaced"]
    assert told[0]["gone"]["text"].endswith("MOVED, reason replaced: a newer message took its place, with the same task id")


def test_a_message_that_waits_for_its_next_delivery_names_the_last_one(channel, connect, why):
    declare(channel, "q", arguments={"x-retry-policy": "constant first=600000"})
    task(channel, "t")
    inbox = consuming(connect)
    inbox.drain(1)
    inbox.messages[0].requeue()
    wait_until(lambda: inbox.pump(0.01) or "retry" in why("t"))
    found = why("t")
    assert found["retry"]["text"].endswith("it was put back to wait after delivery 1")
    assert found[None]["deliveries"].startswith("it was delivered once; 1 ended with a wish for another delivery; when and where")


def test_a_message_that_is_overdue_says_that_nobody_sweeps(channel, why, redis_client):
    declare(channel, "q")
    task(channel, "later", headers={"x-delay": 7_200_000})
    delayed = Keys("").queue("q").delayed
    redis_client.zadd(delayed, {redis_client.zrange(delayed, 0, 0)[0]: 1})
    found = why("later")
    assert found["overdue"]["text"].endswith("and the sweep that makes it ready has not come")
    assert "no_process" in found


def test_a_message_that_expires_before_its_time_says_so(channel, why):
    declare(channel, "q")
    task(channel, "t", headers={"x-delay": 7_200_000, "expires": datetime.now(UTC) + timedelta(hours=1)})
    assert why("t")["expires_first"]["text"].startswith("it expires in ")


def test_a_held_message_names_its_holder_and_a_silent_one_as_such(channel, connect, why, redis_client):
    declare(channel, "q")
    task(channel, "t")
    inbox = consuming(connect)
    inbox.drain(1)
    found = why("t")
    assert found["held"]["text"].startswith(f"{HERE} has it since 20")
    assert found["held"]["text"].endswith("prefetched or in work")
    assert found[None]["deliveries"] is None
    (consumer,) = redis_client.zrange(Keys("").queue("q").consumers, 0, -1)
    redis_client.hset(Keys("").queue("q").consumer + consumer, "heard", 1_000)
    assert "its holder is silent for" in why("t")["silent_holder"]["text"]
    inbox.cancel()
    assert "its holder is no live consumer of the queue" in why("t")["no_consumer_holds"]["text"]


def test_a_message_whose_holder_no_process_knows_comes_back_with_its_lease(channel, connect, why, redis_client):
    declare(channel, "q")
    task(channel, "t")
    consuming(connect).drain(1)
    of = Keys("").queue("q")
    (tag,) = redis_client.zrange(of.index, 0, -1)
    redis_client.hset(of.message + tag, "owner", "deadbeef0000")
    text = why("t")["unknown_holder"]["text"]
    assert "of which no process tells: its lease ends in" in text


def test_a_queue_whose_consumers_choose_says_so(channel, connect, why):
    declare(channel, "q", arguments={"x-filtered": True})
    task(channel, "t")
    assert "filtered" in why("t")


@pytest.mark.parametrize(("arguments", "settle", "reason"), [
    ({}, "reject", "rejected"),
    ({"x-delivery-limit": 1}, "requeue", "delivery_limit"),
    ({"x-retry-policy": "none"}, "requeue", "retry_policy"),
])  # fmt: skip
def test_a_dead_message_names_why_it_died(channel, connect, why, arguments, settle, reason):
    declare(channel, "q", arguments=arguments)
    task(channel, "t")
    inbox = consuming(connect)
    inbox.drain(1)
    getattr(inbox.messages[0], settle)()
    wait_until(lambda: inbox.pump(0.01) or why("t")[None]["state"] == "DEAD")
    found = why("t")["dead"]
    assert (found["values"]["reason"], found["text"].partition(": ")[2]) == (reason, DEATHS[reason])


def test_a_silent_consumer_is_named(channel, connect, why, redis_client):
    declare(channel, "q")
    consuming(connect).pump(0.1)
    task(channel, "t")
    of = Keys("").queue("q")
    (consumer,) = redis_client.zrange(of.consumers, 0, -1)
    redis_client.hset(of.consumer + consumer, "heard", 1_000)
    found = why("t")["silent_consumer"]
    assert found["text"].startswith(f"the consumer on {HERE} is silent for ")
    assert found["values"]["pid"] == os.getpid()


def test_a_message_whose_life_is_over_says_so(channel, why, redis_client):
    declare(channel, "q")
    task(channel, "t")
    of = Keys("").queue("q")
    (tag,) = redis_client.zrange(of.ready, 0, -1)
    redis_client.hset(of.message + tag, "expires", 1)
    assert "its time to live is over" in why("t")["expired"]["text"]
    redis_client.hset(of.message + tag, "expires", 10**14)
    assert "expired" not in why("t")


def test_a_dead_message_on_its_way_to_an_exchange_says_so(channel, connect, why, redis_client):
    declare(channel, "q")
    task(channel, "t")
    inbox = consuming(connect)
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: inbox.pump(0.01) or why("t")[None]["state"] == "DEAD")
    of = Keys("").queue("q")
    redis_client.rename(of.dead, of.dlx_outbox)
    found = why("t")
    assert {"dead", "forwarded"} <= set(found)


def test_a_queue_without_a_record_is_a_cause(channel, why, redis_client):
    declare(channel, "q")
    task(channel, "t")
    redis_client.delete(Keys("").queue("q").meta)
    assert why("t")["no_queue"]["text"] == "queue 'q' has no record any more"


def test_a_message_that_ran_twice_has_its_deliveries_with_their_ends(channel, connect, why, cli):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "q")
    task(channel, "t")
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), ack=False, prefetch=1)
    inbox.drain(1)
    inbox.messages[0].requeue()
    inbox.drain(2)
    assert cli("messages", "kick", "t", "--yes").status == 0
    found = why("t")[None]
    assert found["deliveries"] == "it was delivered 2 times"
    assert [(one["number"], one["event"], one["reason"]) for one in found["attempts"]] == [
        (1, "requeued", "requeue"),
        (2, "requeued", "kicked"),
    ]
    assert found["attempts"][0]["text"].startswith("its consumer wants it to be delivered again, after ")
    printed = cli("why", "t", "--sample", "0").out
    assert "* delivery 2 at 20" in printed
    assert "an operator took it from its consumer" in printed


def test_a_task_with_several_messages_names_them(channel, connect, why):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "q")
    task(channel, "t")
    task(channel, "t")
    found = why("t")["several_messages"]
    assert found["values"]["count"] == 2
    assert "(PENDING)" in found["text"]


def test_a_finished_message_tells_how_it_ended(channel, connect, why):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "q", "other")
    task(channel, "t")
    task(channel, "moves")
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), prefetch=1)
    inbox.drain(1)
    wait_until(lambda: inbox.pump(0.01) or why("t")[None]["state"] == "COMPLETED")
    found = why("t")
    assert found["gone"]["values"]["state"] == "COMPLETED"
    assert [one["event"] for one in found[None]["attempts"]] == ["acked"]


def test_the_next_message_is_told_to_be_it(channel, connect, why):
    declare(channel, "q")
    consuming(connect).pump(0.1)
    task(channel, "t")
    # Nobody pumps the consumer's connection, so it stays.
    assert why("t")["next"]["text"].startswith("it is the next one")


def test_the_turn_is_estimated_from_the_rate(channel, connect, broker_url):
    declare(channel, "q")
    for number in range(100):
        task(channel, f"t{number}")
    consuming(connect)
    with BrokerAdmin(broker_url) as admin:
        found = admin.messages.find("t99", "q")
        assert admin.explain("q", found.id).turn == ""
        told = admin.explain("q", found.id, Rate(10.0, 2.0))
        before = next(cause for cause in told.causes if cause.kind == "behind").values["before"]
        assert told.turn_s == pytest.approx((before + 1) / 10)
        assert told.turn.startswith("in about 10 s, at 10.0 deliveries a second (over the last 2 s)")
        assert ", at 2.4 deliveries a minute (" in admin.explain("q", found.id, Rate(0.04, 60.0)).turn
        told = admin.explain("q", found.id, Rate(0.0, 2.0))
        assert told.turn == "unknown: nothing was delivered from its queue in the last 2 s"
        assert admin.explain("q", "19a4d2f3b1c00000001.17k3x9") is None


def test_an_unknown_message_ends_with_what_was_searched(cli, channel):
    declare(channel, "q")
    told = cli("why", "nobody")
    assert (told.status, "0 messages that are" in told.err) == (1, True)
