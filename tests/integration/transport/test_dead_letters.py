"""What cannot be delivered: it goes to the dead-letter exchange, or to the queue's own store, and comes back when told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import QueueNotFound
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}


def letters(channel, queue):
    return dead_letters_of(channel).page(queue)


def reject_all(channel, queue, count):
    inbox = Inbox(channel, kombu.Queue(queue, no_declare=True), ack=False)
    inbox.drain(count)
    for message in inbox.messages:
        message.reject()


def test_a_rejected_message_is_in_the_store_with_its_death(channel):
    declare(channel, "q")
    publish(channel, "q", "bad", priority=7, headers={"mine": 1})
    reject_all(channel, "q", 1)
    letter = wait_until(lambda: letters(channel, "q"))[0]
    assert (letter.reason, letter.queue, letter.failures, letter.deliveries) == ("rejected", "q", 1, 1)
    assert letter.body == b"bad"
    assert letter.headers["mine"] == 1
    [death] = letter.death_headers["x-death"]
    assert death == {
        "count": 1, "reason": "rejected", "queue": "q", "time": letter.died_ms // 1000, "exchange": "", "routing-keys": ["q"],
    }  # fmt: skip
    assert letter.death_headers["x-first-death-reason"] == "rejected"
    assert dead_letters_of(channel).read("q", [letter.tag, "unknown"]) == [letter]


def test_pages_from_the_newest_on_have_each_letter_once(channel):
    declare(channel, "q")
    publish(channel, "q", *range(5))
    reject_all(channel, "q", 5)
    wait_until(lambda: len(letters(channel, "q")) == 5)
    store = dead_letters_of(channel)
    pages = [store.page("q", first, 2, newest=True) for first in (0, 2, 4, 6)]
    assert [[letter.body for letter in page] for page in pages] == [[b"4", b"3"], [b"2", b"1"], [b"0"], []]


def test_a_replayed_message_has_its_priority_and_fresh_counters(channel, connect):
    declare(channel, "q")
    publish(channel, "q", "bad", priority=7)
    with connect() as consuming:
        reject_all(consuming.channel(), "q", 1)
        wait_until(lambda: letters(channel, "q"))
    [letter] = letters(channel, "q")
    publish(channel, "q", "low", priority=6)
    publish(channel, "q", "high", priority=8)
    assert dead_letters_of(channel).replay(letter)
    assert not dead_letters_of(channel).replay(letter), "it is there once"
    inbox = Inbox(channel, "q", prefetch=1)
    assert inbox.drain(3) == ["high", "bad", "low"]
    message = inbox.messages[1]
    assert not message.delivery_info["redelivered"]
    assert message.headers["x-death"][0]["count"] == 1
    assert message.delivery_tag == letter.tag
    assert letters(channel, "q") == []


def test_a_replayed_task_has_no_expiry_and_is_no_duplicate(channel, connect):
    declare(channel, "q")
    own = {"x-deduplication-id": "order 3", "x-deduplication-scope": "until-acked"}
    soon = datetime.now(UTC) + timedelta(hours=1)
    publish(channel, "q", "bad", headers={"task": "t", "id": "1", "expires": soon.isoformat(), **own})
    with connect() as consuming:
        reject_all(consuming.channel(), "q", 1)
        [letter] = wait_until(lambda: letters(channel, "q"))
    assert dead_letters_of(channel).replay(letter)
    inbox = Inbox(channel, "q")
    inbox.drain(1)
    headers = inbox.messages[0].headers
    assert (headers["task"], headers["expires"]) == ("t", None)
    assert not own.keys() & headers.keys()


def test_a_replayed_message_fails_as_often_as_a_new_one(channel):
    declare(channel, "q", arguments={"x-delivery-limit": 2})
    publish(channel, "q", "bad")
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), ack=False)

    def deliveries_until_it_dies():
        before = len(inbox.messages)
        while not (found := letters(channel, "q")):
            if inbox.pump(0.1):
                inbox.messages[-1].requeue()
        return len(inbox.messages) - before, found[0]

    first, letter = deliveries_until_it_dies()
    assert dead_letters_of(channel).replay(letter)
    again, letter = deliveries_until_it_dies()
    assert first == again > 1


def test_a_letter_goes_to_another_queue_and_stays_where_that_does_not_exist(channel):
    declare(channel, "q", "other")
    publish(channel, "q", "a")
    reject_all(channel, "q", 1)
    letter = wait_until(lambda: letters(channel, "q"))[0]
    with pytest.raises(QueueNotFound, match="queue 'nowhere' does not exist"):
        dead_letters_of(channel).replay(letter, "nowhere")
    assert letters(channel, "q") == [letter]
    assert dead_letters_of(channel).replay(letter, "other")
    assert Inbox(channel, "other").drain(1) == ["a"]


def test_letters_are_deleted_one_by_one_and_all_together(channel):
    declare(channel, "q")
    publish(channel, "q", *range(5))
    reject_all(channel, "q", 5)
    found = wait_until(lambda: len(letters(channel, "q")) == 5 and letters(channel, "q"))
    assert dead_letters_of(channel).delete("q", [found[0].tag, "unknown"]) == 1
    assert [letter.body for letter in dead_letters_of(channel).all("q")] == [b"1", b"2", b"3", b"4"]
    assert dead_letters_of(channel).purge("q") == 4
    assert dead_letters_of(channel).count("q") == 0


def test_a_store_keeps_the_latest_and_counts_what_it_loses(connect, redis_client):
    channel = connect(dead_letter_max=3).channel()
    declare(channel, "q")
    publish(channel, "q", *range(5))
    reject_all(channel, "q", 5)
    wait_until(lambda: [letter.body for letter in letters(channel, "q")] == [b"2", b"3", b"4"])
    assert redis_client.hget("meta:{q}", "dead_evicted") == b"2"


def test_a_letter_is_kept_for_as_long_as_the_option_says(connect, redis_client):
    channel = connect(dead_letter_ttl=600).channel()
    declare(channel, "q")
    publish(channel, "q", "older", "younger")
    reject_all(channel, "q", 2)
    older, younger = wait_until(lambda: len(found := letters(channel, "q")) == 2 and found)
    # One died a little longer ago than that, the other a minute less.
    redis_client.zincrby("dead:{q}", -605_000, older.tag)
    redis_client.zincrby("dead:{q}", -540_000, younger.tag)
    redis_client.zadd("schedule_wakeup:{q}", {"due": 0})
    # One pass takes all whose time is over.
    wait_until(lambda: len(letters(channel, "q")) < 2)
    assert [letter.body for letter in letters(channel, "q")] == [b"younger"]
    assert redis_client.hget("meta:{q}", "dead_evicted") == b"1"


@pytest.mark.parametrize("body", ["small", "x" * 1_100_000])
def test_the_dead_letter_exchange_gets_it_with_x_death(channel, body):
    declare(channel, "graves")
    declare(channel, "q", arguments=DLX)
    publish(channel, "q", body, priority=5, expiration=3600)
    reject_all(channel, "q", 1)
    inbox = Inbox(channel, "graves")
    assert inbox.drain(1) == [body]
    [message] = inbox.messages
    death = message.headers["x-death"][0]
    assert (death["reason"], death["queue"], death["count"], death["routing-keys"]) == ("rejected", "q", 1, ["q"])
    assert message.delivery_info["routing_key"] == "graves"
    assert message.properties["priority"] == 5
    assert "expiration" not in message.properties
    assert not message.delivery_info["redelivered"]


def test_a_dead_letter_exchange_routes_to_all_its_queues(channel):
    exchange = kombu.Exchange("dlx", "topic")
    for name in ("a", "b"):
        kombu.Queue(name, exchange, "#", durable=True)(channel).declare()
    declare(channel, "q", arguments={"x-dead-letter-exchange": "dlx"})
    publish(channel, "q", "bad")
    reject_all(channel, "q", 1)
    assert Inbox(channel, "a").drain(1) == ["bad"]
    assert Inbox(channel, "b").drain(1) == ["bad"]


def test_what_the_exchange_takes_nowhere_stays_in_the_store(channel, caplog):
    declare(channel, "q", arguments={"x-dead-letter-exchange": "nobody-home"})
    publish(channel, "q", "bad")
    reject_all(channel, "q", 1)
    assert wait_until(lambda: letters(channel, "q"))[0].body == b"bad"
    # The forwarder tells it after the step that stores the letter.
    wait_until(lambda: "'nobody-home' of queue 'q' takes 1 dead message(s) nowhere" in caplog.text)


def test_a_transient_queue_without_an_exchange_drops_and_counts(channel, redis_client):
    declare(channel, "replies", durable=False, auto_delete=True)
    publish(channel, "replies", "late")
    reject_all(channel, "replies", 1)
    wait_until(lambda: redis_client.hget("meta:{replies}", "discarded") == b"1")
    assert letters(channel, "replies") == []
    assert not redis_client.keys("message:{replies}:*")


def test_requeued_messages_die_at_the_delivery_limit(channel):
    declare(channel, "q", arguments={"x-delivery-limit": 3})
    publish(channel, "q", "poison")
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments={"x-delivery-limit": 3}), ack=False)
    for delivery in range(1, 4):
        inbox.drain(delivery)
        message = inbox.messages[-1]
        assert message.headers.get("x-delivery-count", 0) == delivery - 1
        assert message.delivery_info["redelivered"] == (delivery > 1)
        message.requeue()
    letter = wait_until(lambda: letters(channel, "q"))[0]
    assert (letter.reason, letter.failures, letter.deliveries) == ("delivery_limit", 3, 3)
    assert inbox.rest() == ["poison"] * 3


def test_the_failures_of_one_that_died_at_the_limit_stay_known_when_it_is_gone(connect, broker_url):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "q", arguments={"x-delivery-limit": 2})
    publish(channel, "q", "bad")
    for _ in range(2):
        wait_until(lambda: channel.basic_get("q")).requeue()
    [letter] = wait_until(lambda: letters(channel, "q"))
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.find(letter.tag, "q").failures == letter.failures == 2
        assert dead_letters_of(channel).delete("q", [letter.tag]) == 1
        gone = admin.messages.find(letter.tag, "q")
    assert (gone.deliveries, gone.failures) == (2, 2)


def test_the_option_sets_the_limit_of_queues_without_one(connect):
    channel = connect(delivery_limit=2).channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "poison")
    for delivery in (1, 2):
        inbox.drain(delivery)
        inbox.messages[-1].mark_failed()
        inbox.messages[-1].requeue()
    assert wait_until(lambda: letters(channel, "q"))[0].failures == 2


def test_a_clean_release_is_no_failure(connect):
    other = connect(delivery_limit=1)
    for _ in range(3):
        channel = connect(delivery_limit=1).channel()
        inbox = Inbox(channel, "q", ack=False)
        if not inbox.messages and _ == 0:
            publish(other.channel(), "q", "healthy")
        inbox.drain(1)
        assert inbox.messages[0].headers.get("x-delivery-count", 0) == 0
        channel.close()
    inbox = Inbox(other.channel(), "q")
    inbox.drain(1)
    assert inbox.messages[0].headers["x-acquired-count"] == 4


def test_a_requeued_message_waits_for_the_back_off(channel):
    arguments = {"x-delayed-retry-min": 200, "x-delayed-retry-max": 300}
    declare(channel, "q", arguments=arguments)
    inbox = Inbox(channel, kombu.Queue("q", durable=True, queue_arguments=arguments), ack=False)
    publish(channel, "q", "again", priority=3)
    for delivery in range(1, 5):
        inbox.drain(delivery)
        inbox.messages[-1].requeue()
    gaps = [later - earlier for earlier, later in zip(inbox.times, inbox.times[1:], strict=False)]
    # The shortest times the failures, at most the longest.
    assert all(gap >= least for gap, least in zip(gaps, (0.199, 0.299, 0.299), strict=True))


def test_the_retry_circle_of_a_ttl_queue_and_two_exchanges(channel):
    """The work queue rejects to `retry`, whose messages expire back into the work queue. Nobody consumes `retry`."""
    to_retry = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}
    to_work = {"x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    declare(channel, "retry", arguments=to_work)
    declare(channel, "work", arguments=to_retry)
    inbox = Inbox(channel, kombu.Queue("work", durable=True, queue_arguments=to_retry), ack=False)
    publish(channel, "work", "again")
    for delivery in (1, 2, 3):
        inbox.drain(delivery)
        inbox.messages[-1].reject()
    inbox.drain(4)
    deaths = {(death["queue"], death["reason"]): death["count"] for death in inbox.messages[-1].headers["x-death"]}
    assert deaths == {("work", "rejected"): 3, ("retry", "expired"): 3}
    assert all(later - earlier >= 0.3 for earlier, later in zip(inbox.times, inbox.times[1:], strict=False))
    inbox.messages[-1].ack()


def test_a_circle_without_a_rejection_ends_in_the_store(channel):
    for name, other in (("a", "b"), ("b", "a")):
        declare(
            channel, name,
            arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other},
        )  # fmt: skip
    Inbox(channel, "elsewhere")
    publish(channel, "a", "round")
    letter = wait_until(lambda: letters(channel, "b") or letters(channel, "a"))[0]
    assert letter.reason == "expired"
    assert letter.body == b"round"
