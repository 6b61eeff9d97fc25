"""Tracked deliveries: who acked, who rejected, who did not answer."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import kombu
import pytest

import celery_redis_plus
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.errors import DeliveryNotFound, InvalidArgument, QueueFull
from tests.support.inbox import Inbox, declare
from tests.support.program import forked
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.same_everywhere

ROOT = Path(__file__).parents[3]


@pytest.fixture
def dead(connection):
    """Return a queue's dead letters."""
    session = connection.default_channel.session
    return lambda queue: list(DeadLetters(session.commands, session.keys).all(queue))


@pytest.fixture
def topic(channel):
    """Bind queues to the exchange `t`."""

    def bind(*queues):
        channel.exchange_declare("t", "topic")
        for queue in queues:
            declare(channel, queue)
            channel.queue_bind(queue, "t", "#")

    return bind


class Calls:
    """Callbacks of a delivery, in the order in which they came."""

    def __init__(self, delivery):
        self.names = []
        delivery.on_complete(lambda _: self.names.append("complete"))
        delivery.on_resolved(lambda _: self.names.append("resolved"))


def publish(connection, body="x", **options):
    return celery_redis_plus.publish(body, connection=connection, track=True, **{"ack_timeout": 10, **options})


def test_every_queue_of_a_topic_is_a_recipient(connection, channel, topic, connect):
    topic("a", "b", "c")
    delivery = publish(connection, exchange="t", routing_key="k")
    calls = Calls(delivery)
    assert delivery.outcomes() == dict.fromkeys("abc", "pending")
    assert not delivery.wait(0.05)
    first = channel.basic_get("a")
    wait_until(lambda: delivery.outcomes()["a"] == "delivered")
    first.ack()
    inbox = Inbox(connect().channel(), "b", "c")
    inbox.drain(2)
    inbox.rest(0.05)
    assert delivery.wait(PATIENCE_S)
    assert delivery.complete
    assert delivery.outcomes() == dict.fromkeys("abc", "acked")
    wait_until(lambda: calls.names == ["complete", "resolved"])


def test_a_rejected_message_resolves_and_does_not_complete(connection, channel, dead):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q")
    calls = Calls(delivery)
    channel.basic_get("q").reject()
    assert delivery.wait(PATIENCE_S)
    assert delivery.outcomes() == {"q": "rejected"}
    assert not delivery.complete
    wait_until(lambda: calls.names)
    assert calls.names == ["resolved"]
    assert [letter.reason for letter in dead("q")] == ["rejected"]


def test_a_requeued_message_is_not_answered_yet(connection, channel):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q")
    channel.basic_get("q").requeue()
    again = wait_until(lambda: channel.basic_get("q"))
    assert not delivery.resolved
    again.ack()
    assert delivery.wait(PATIENCE_S)
    assert delivery.complete


@pytest.mark.parametrize("taken", [False, True])
def test_who_does_not_answer_in_time_counts_as_nacked_and_leaves_a_dead_letter(connection, channel, dead, taken, redis_client):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q", ack_timeout=0.3)
    message = channel.basic_get("q") if taken else None
    assert delivery.wait(10)
    assert delivery.outcomes() == {"q": "timed_out"}
    assert [letter.reason for letter in dead("q")] == ["ack_timeout"]
    assert channel.basic_get("q") is None
    if message is not None:
        # Its work is done after all.
        message.ack()
        wait_until(lambda: not dead("q"))
        assert delivery.outcomes() == {"q": "timed_out"}
    assert redis_client.zcard("tracks") == 0


def test_a_queue_that_refuses_is_a_recipient_that_refused(connection, channel, bounded, topic):
    topic("open")
    bounded("full", max_length=0, overflow="reject-publish")
    channel.queue_bind("full", "t", "#")
    delivery = publish(connection, exchange="t")
    assert delivery.outcomes() == {"open": "pending", "full": "refused"}
    channel.basic_get("open").ack()
    assert delivery.wait(PATIENCE_S)
    assert not delivery.complete
    with pytest.raises(QueueFull):
        publish(connection, routing_key="full")


def test_a_duplicate_is_refused_at_once(connection, channel):
    declare(channel, "q")
    headers = {"x-deduplication-id": "a"}
    first, second = (
        celery_redis_plus.publish(1, routing_key="q", connection=connection, track=True, headers=headers) for _ in "12"
    )
    assert (first.outcomes(), second.outcomes()) == ({"q": "pending"}, {"q": "refused"})
    assert second.resolved
    assert not second.complete


def test_a_delivery_without_any_recipient_is_resolved_and_not_complete(connection, channel):
    channel.exchange_declare("t", "topic")
    delivery = publish(connection, exchange="t", routing_key="nobody")
    assert delivery.wait(PATIENCE_S)
    assert delivery.outcomes() == {}
    assert not delivery.complete


def test_another_connection_picks_a_delivery_up_by_its_id(connection, connect, channel):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q")
    other = celery_redis_plus.delivery(delivery.id, connection=connect())
    channel.basic_get("q").ack()
    assert other.wait(PATIENCE_S)
    assert other.complete
    late = celery_redis_plus.delivery(delivery.id, connection=connect())
    assert late.complete
    names = []
    late.on_resolved(lambda _: names.append("resolved"))
    wait_until(lambda: names == ["resolved"])


def test_an_unknown_id_is_an_error(connection):
    with pytest.raises(DeliveryNotFound, match="'nope'"):
        celery_redis_plus.delivery("nope", connection=connection)


def test_the_state_has_a_ttl(connection, channel, redis_client):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q")
    channel.basic_get("q").ack()
    assert delivery.wait(PATIENCE_S)
    for key in redis_client.keys("track*"):
        if key != b"tracks":
            assert 3_000_000 < redis_client.pttl(key) <= 3_610_000


def test_many_deliveries_share_one_thread_and_two_connections(connection, channel, redis_client):
    declare(channel, "q")
    # That of another test ends by itself.
    before = threading.enumerate()
    deliveries = [publish(connection, number, routing_key="q") for number in range(20)]
    done = []
    for delivery in deliveries:
        delivery.on_complete(done.append)
    for _ in deliveries:
        channel.basic_get("q").ack()
    wait_until(lambda: len(done) == 20)
    assert {delivery.id for delivery in done} == {delivery.id for delivery in deliveries}
    wait_until(lambda: not [t for t in threading.enumerate() if t not in before and t.name == "celery-redis-plus-deliveries"])


def test_a_lost_connection_delays_the_answer_and_does_not_lose_it(connection, channel, redis_client):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q")
    calls = Calls(delivery)

    def cut():
        clients = [client for client in redis_client.client_list() if client["name"].endswith(("answers", "deliveries"))]
        for client in clients:
            redis_client.client_kill(client["addr"])
        return clients

    wait_until(cut)
    channel.basic_get("q").ack()
    assert delivery.wait(10)
    wait_until(lambda: calls.names == ["complete", "resolved"])


def test_an_untracked_publish_returns_nothing(connection, channel):
    declare(channel, "q")
    assert celery_redis_plus.publish("x", connection=connection, routing_key="q") is None
    assert "x-delivery-id" not in channel.basic_get("q").headers


def test_what_cannot_be_meant_is_refused(connection, channel):
    channel.exchange_declare("d", "direct")
    with pytest.raises(InvalidArgument, match="'direct'"):
        celery_redis_plus.broadcast("x", "d", connection=connection)
    with pytest.raises(InvalidArgument, match="ack_timeout is 0"):
        publish(connection, routing_key="q", ack_timeout=0)
    with pytest.raises(InvalidArgument, match="allowed are a kombu Connection"):
        publish(3, routing_key="q")
    with kombu.Connection("memory://") as other, pytest.raises(InvalidArgument, match="celery_redis_plus"):
        publish(other, routing_key="q")


def test_of_five_subscribers_one_rejects_and_one_is_killed(connection, channel, broker_url, dead):
    """Show 4."""
    channel.exchange_declare("news", "fanout", durable=True)
    actions = {"s1": "ack", "s2": "ack", "s3": "ack", "s4": "reject", "s5": "sit"}
    with ExitStack() as stack:
        processes = {}
        for queue, action in actions.items():
            command = ("tests.integration.flow_control.subscriber_process", broker_url, queue, action)
            processes[queue] = stack.enter_context(forked(*command))
            stack.callback(processes[queue].kill)
        for process in processes.values():
            assert process.stdout.readline() == "ready\n"
        delivery = celery_redis_plus.broadcast("hello", "news", connection=connection, ack_timeout=3)
        calls = Calls(delivery)
        assert len(delivery.outcomes()) == 5
        for process in processes.values():
            assert process.stdout.readline() == "took hello\n"
        processes["s5"].kill()
        wait_until(lambda: sorted(delivery.outcomes().values()) == ["acked"] * 3 + ["delivered", "rejected"])
        assert not delivery.resolved
        assert calls.names == []
        assert delivery.wait(20)
    outcomes = {recipient.partition(".")[2]: outcome for recipient, outcome in delivery.outcomes().items()}
    assert outcomes == {"s1": "acked", "s2": "acked", "s3": "acked", "s4": "rejected", "s5": "timed_out"}
    wait_until(lambda: calls.names)
    assert calls.names == ["resolved"]
    letters = {letter.headers["x-recipient"].partition(".")[2]: letter for letter in dead(UNDELIVERED)}
    assert {queue: letter.reason for queue, letter in letters.items()} == {"s4": "rejected", "s5": "ack_timeout"}
    assert all(letter.body == b"hello" and letter.exchange == "news" for letter in letters.values())


def test_a_subscriber_that_acks_too_late_has_timed_out(connection, connect):
    news = kombu.Exchange("news", "fanout", durable=True)
    inbox = Inbox(connect().channel(), kombu.Queue("s", news, durable=True), ack=False)
    delivery = celery_redis_plus.broadcast("x", "news", connection=connection, ack_timeout=0.3)
    inbox.drain(1)
    assert delivery.wait(10)
    inbox.messages[0].ack()
    inbox.pump(1.5)
    # Asked anew: a handle keeps what it has heard.
    again = celery_redis_plus.delivery(delivery.id, connection=connection)
    assert list(again.outcomes().values()) == ["timed_out"]
    assert not again.complete


def test_a_subscriber_without_acks_has_acked_by_taking(connection, channel, connect):
    news = kombu.Exchange("news", "fanout")
    inbox = Inbox(connect().channel(), kombu.Queue("s", news, auto_delete=True), no_ack=True)
    delivery = celery_redis_plus.broadcast("hello", "news", connection=connection, ack_timeout=10)
    inbox.drain(1)
    inbox.rest(0.05)
    assert delivery.wait(PATIENCE_S)
    assert delivery.complete


@pytest.fixture
def look_often(monkeypatch):
    """Look for forgotten deliveries more often; before any connection is made."""
    monkeypatch.setattr("celery_redis_plus.maintenance.ack_timeouts.ABANDONED_CHECK_S", 1.0)


def test_a_delivery_whose_publisher_has_died_is_resolved_by_any_consumer(look_often, connection, channel, connect, dead):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q", ack_timeout=0.2)
    consumer = Inbox(connect().channel(), "other")
    wait_until(lambda: delivery.resolved)
    assert delivery.outcomes() == {"q": "timed_out"}
    assert len(dead("q")) == 1
    consumer.consumer.cancel()


# ---- messages that end without a consumer's answer


def outcome(delivery):
    assert delivery.wait(PATIENCE_S)
    assert not delivery.complete
    return dict(delivery.outcomes())


def test_a_purge_and_a_deletion_resolve_at_once(connection, channel, topic):
    topic("a", "b")
    delivery = publish(connection, exchange="t", routing_key="k", ack_timeout=60)
    publish(connection, routing_key="a", ack_timeout=60)
    channel.queue_purge("a")
    assert delivery.outcomes() == {"a": "gone", "b": "pending"}
    channel.queue_delete("b")
    assert outcome(delivery) == {"a": "gone", "b": "gone"}


def test_a_message_that_expires_resolves_its_delivery(connection, channel):
    declare(channel, "q")
    delivery = publish(connection, routing_key="q", ack_timeout=60, expiration=0.2)
    Inbox(channel, "other")
    assert outcome(delivery) == {"q": "expired"}


def test_a_cancelled_message_and_a_moved_one_resolve_their_deliveries(connection, channel):
    for queue in ("q", "elsewhere"):
        declare(channel, queue)
    first, second, third = (publish(connection, routing_key="q", ack_timeout=60) for _ in range(3))
    session = channel.session
    messages = Messages(session.commands, session.keys, dead_letter_max=100)
    tags = [message.tag for message in celery_redis_plus.browse("q", connection=connection)]
    messages.cancel("q", tags[:1])
    messages.cancel("q", tags[1:2], dead_letter=True)
    assert [outcome(delivery) for delivery in (first, second)] == [{"q": "gone"}, {"q": "gone"}]
    messages.move("q", tags[2], "elsewhere")
    assert outcome(third) == {"q": "moved"}
    channel.basic_get("elsewhere").ack()
    assert third.outcomes() == {"q": "moved"}


def test_a_message_that_dies_at_its_limit_or_makes_room_resolves_its_delivery(connection, channel, bounded):
    declare(channel, "dies", arguments={"x-delivery-limit": 1})
    delivery = publish(connection, routing_key="dies", ack_timeout=60)
    channel.basic_get("dies").requeue()
    assert outcome(delivery) == {"dies": "rejected"}
    bounded("full", max_length=1, overflow="drop-head")
    dropped = publish(connection, routing_key="full", ack_timeout=60)
    publish(connection, routing_key="full", ack_timeout=60)
    assert outcome(dropped) == {"full": "gone"}


def test_messages_that_claim_to_be_tracked_are_no_trouble(connection, channel, redis_client):
    declare(channel, "q")
    publish(connection, routing_key="q", ack_timeout=60)
    redis_client.set("track:{ab}", "of another type")
    for header in ("ab", "cd", "no hex", 7):
        celery_redis_plus.publish("x", connection=connection, routing_key="q", headers={"x-delivery-id": header})
    assert channel.queue_purge("q") == 5
    redis_client.delete("track:{ab}")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda client, record, answers: (client.delete(record), client.set(record, "foreign")), id="record"),
        pytest.param(lambda client, record, answers: client.set(answers, "foreign"), id="answers"),
        pytest.param(lambda client, record, answers: client.hset(record, "about", "{"), id="about"),
        pytest.param(lambda client, record, answers: client.hset(record, "about", "[1]"), id="short"),
        pytest.param(lambda client, record, answers: client.hset(record, "resolved", "x"), id="resolved"),
        pytest.param(lambda client, record, answers: client.hset(record, "to:q1", b"\xff"), id="outcome"),
    ],
)
def test_a_delivery_that_cannot_be_read_ends_alone(connection, channel, redis_client, damage, request):
    declare(channel, "q0", "q1", "q2")
    timeouts = 60, 60 if "answers" in request.node.name else 1, 1
    deliveries = [publish(connection, routing_key=f"q{number}", ack_timeout=timeout) for number, timeout in enumerate(timeouts)]
    record = f"track:{{{deliveries[1].id}}}"
    damage(redis_client, record, record.replace("track:", "track_events:"))
    calls = [Calls(delivery) for delivery in deliveries]
    channel.basic_get("q0").ack()
    wait_until(lambda: calls[0].names == ["complete", "resolved"], 10)
    # Both the one that nobody answers, and the damaged one.
    wait_until(lambda: calls[1].names == calls[2].names == ["resolved"], 10)
    assert deliveries[2].outcomes() == {"q2": "timed_out"}
    assert not redis_client.exists("tracks")


@pytest.mark.parametrize("kind", ["track", "queue"])
def test_other_deliveries_of_dead_publishers_are_resolved(look_often, connection, channel, connect, redis_client, kind):
    declare(channel, "q0", "q1", "q2", "other")
    deliveries = [publish(connection, routing_key=f"q{number}", ack_timeout=0.1) for number in range(3)]
    key = f"track:{{{deliveries[1].id}}}" if kind == "track" else "queue:{q1}"
    redis_client.delete(key)
    redis_client.set(key, "foreign")
    Inbox(connect().channel(), "other")
    wait_until(lambda: not redis_client.exists("tracks"), 20)
    assert [delivery.outcomes() for delivery in (deliveries[0], deliveries[2])] == [{"q0": "timed_out"}, {"q2": "timed_out"}]
