from __future__ import annotations

import itertools
import random

import pytest
from redis.exceptions import ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publish_batch import BatchedMessage, BatchPublisher
from celery_redis_plus.broker.publishing.publisher import stage
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.errors import OutcomeUnknown, QueueNotFound, ServerUnreachable
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import LARGE_BODY, Outgoing
from tests.support.lost_replies import lose_the_replies
from tests.support.waiting import wait_until


@pytest.fixture
def lose_reply(broker, monkeypatch):
    """Let the next publish run on the server, and its publisher not know."""
    run = broker.commands.call_packed

    def lose() -> None:
        def once(what, packed):
            monkeypatch.setattr(broker.commands, "call_packed", run)
            run(what, packed)
            broker.commands.outcome_unknown = True
            error = ServerUnreachable("lost")
            broker.commands.abort(error)
            raise error

        monkeypatch.setattr(broker.commands, "call_packed", once)

    return lose


@pytest.mark.parametrize("size", [10, LARGE_BODY + 1])
def test_a_retry_after_a_lost_reply_stores_nothing_more(broker, lose_reply, size):
    broker.declare("q")
    message, attempt = Outgoing(b"{}", b"x" * size, 255), PublishAttempt()
    lose_reply()
    with pytest.raises(ServerUnreachable):
        broker.publisher.to_queue("q", message, attempt)
    assert broker.queues.sizes("q").ready == 1
    for _ in range(3):
        assert broker.publisher.to_queue("q", message, attempt)
    assert broker.queues.sizes("q").ready == 1
    broker.check()
    assert not [key for key in broker.client.keys("*staged*") if broker.client.pttl(key) < 0]


def test_a_retry_of_what_never_arrived_stores_it(broker):
    broker.declare("q")
    attempt = PublishAttempt()
    broker.commands.connect()
    attempt.mark_unknown("q", broker.commands.producer, 1)
    assert broker.publisher.to_queue("q", Outgoing(b"{}", b"x", 255), attempt)
    assert broker.bodies("q") == [b"x"]


def test_a_message_acked_before_its_retry_comes_does_not_come_back(broker, lose_reply):
    from celery_redis_plus.broker.consumers.settlement import Settlement

    broker.declare("q")
    message, attempt = Outgoing(b"{}", b"x", 255), PublishAttempt()
    lose_reply()
    with pytest.raises(ServerUnreachable):
        broker.publisher.to_queue("q", message, attempt)
    broker.settle(Settlement.ACK, *broker.claim("q"))
    assert broker.publisher.to_queue("q", message, attempt)
    assert broker.queues.sizes("q").ready == 0


def test_a_retry_after_the_window_says_that_the_outcome_is_unknown(broker, lose_reply, monkeypatch):
    broker.declare("q")
    message, attempt = Outgoing(b"{}", b"x", 255), PublishAttempt()
    lose_reply()
    with pytest.raises(ServerUnreachable):
        broker.publisher.to_queue("q", message, attempt)
    now_s = clock.now_s
    monkeypatch.setattr(clock, "now_s", lambda: now_s() + 901)
    with pytest.raises(OutcomeUnknown, match="publish_dedup_window"):
        broker.publisher.to_queue("q", message, attempt)


def test_the_server_remembers_a_producer_for_the_window(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    (producer,) = broker.client.keys("producer:*")
    assert 840_000 < broker.client.pttl(producer) <= 900_000


def test_the_server_remembers_the_numbers_of_a_batch_for_the_window(broker, monkeypatch):
    broker.declare("q")
    batches = BatchPublisher(broker.commands, broker.keys, broker.publisher, dedup_window_s=900)
    lose_the_replies(monkeypatch, arrived=True)
    batch = [BatchedMessage("q", Outgoing(b"{}", b"x", 255), PublishAttempt())]
    assert batches.to_queues(batch)[0] == batch
    (producer,) = broker.client.keys("producer:*")
    assert 840_000 < broker.client.pttl(producer) <= 900_000


@pytest.mark.parametrize("seed", range(20))
def test_retries_in_any_order_lose_and_double_nothing(broker, seed):
    """Originals arrive in the order of their connection, or not at all from some point on; retries come in any order."""
    chance = random.Random(seed)
    broker.declare("q")
    keys = broker.keys.queue("q")
    call_keys = [*keys.publish, keys.producer + b"P%d" % seed]

    def send(number, retry):
        return broker.commands.call(script("publish"), call_keys, b"{}\n%d" % number, 255, 0, number, int(retry), 60_000, "")

    numbers = list(range(1, 9))
    arriving = numbers[: chance.randint(0, len(numbers))]
    originals = [(number, False) for number in arriving]
    retries = [(number, True) for number in numbers for _ in range(chance.randint(1, 2))]
    chance.shuffle(retries)
    while originals or retries:
        queue = originals if originals and (not retries or chance.random() < 0.5) else retries
        send(*queue.pop(0))
    bodies = [int(body) for body in broker.bodies("q")]
    assert sorted(bodies) == numbers


def test_tags_sort_in_the_order_of_publishing_and_are_unique_over_queues(broker):
    broker.declare("a", "b")
    for _ in range(300):
        broker.publish("a", b"x")
        broker.publish("b", b"x")
    a = list(broker.client.zrange("queue:{a}", 0, -1))
    b = list(broker.client.zrange("queue:{b}", 0, -1))
    assert a == sorted(a)
    assert len({*a, *b}) == 600
    assert all(len(tag) <= 27 for tag in itertools.chain(a, b))


def test_a_queue_without_a_record_is_declared_by_its_first_message(broker):
    broker.publish("q", b"x")
    assert broker.queues.exists("q")
    assert broker.bodies("q") == [b"x"]


def test_a_queue_that_cannot_be_made_is_an_error_and_not_a_loss(broker, monkeypatch):
    monkeypatch.setattr(broker.publisher, "_on_missing", lambda queue: True)
    with pytest.raises(QueueNotFound, match="nothing was stored"):
        broker.publish("q", b"x")


def test_a_staged_body_that_has_gone_is_refused_and_its_retry_is_not_taken_for_a_double(broker):
    """A server that evicts may drop it between the staging and the script."""
    broker.declare("q")
    keys = broker.keys.queue("q")
    call_keys = [*keys.publish, keys.producer + b"P", keys.message + b"staged.P.1"]
    for retry in (0, 1):
        with pytest.raises(ResponseError):
            broker.commands.call(script("publish"), call_keys, b"{}", 255, 0, 1, retry, 60_000, "")
    broker.check()
    broker.client.hset("message:{q}:staged.P.1", "body", "x")
    assert broker.commands.call(script("publish"), call_keys, b"{}", 255, 0, 1, 1, 60_000, "")
    assert broker.queues.sizes("q").ready == 1
    broker.check()


def test_a_staged_body_expires_where_the_connection_ends_in_the_midst_of_it(broker, monkeypatch):
    def send_a_part(connection, packed):
        connection._sock.sendall(packed[:-1])  # noqa: SLF001
        raise ServerUnreachable("cut off")

    monkeypatch.setattr("celery_redis_plus.connection.command_connection.send", send_a_part)
    with pytest.raises(ServerUnreachable):
        stage(broker.commands, broker.keys.queue("q"), b"P.1", b"x" * 100_000)
    # Not before a slow publish has used it.
    wait_until(lambda: broker.client.pttl("message:{q}:staged.P.1") > 240_000)


def test_publishing_sends_the_wakeup_and_a_delayed_message_the_schedule_wakeup(broker):
    broker.declare("q")
    broker.publish("q", b"later", eta="+60000")
    assert broker.client.exists("schedule_wakeup:{q}")
    assert not broker.client.exists("wakeup:{q}")
    broker.publish("q", b"now")
    assert broker.client.exists("wakeup:{q}")


@pytest.mark.parametrize("eta", ["+3600000", 0])
def test_a_message_with_another_time_sends_the_schedule_wakeup(broker, eta):
    """Else it would come with the next sweep only, which may be four seconds late."""
    broker.declare("q")
    broker.publish("q", b"x", eta=eta)
    broker.client.delete("schedule_wakeup:{q}")
    (tag,) = broker.client.zrange("queue:{q}", 0, -1) or broker.client.zrange("delayed:{q}", 0, -1)
    assert Messages(broker.commands, broker.keys, dead_letter_max=5).reschedule("q", tag.decode(), "+50")
    assert broker.client.exists("schedule_wakeup:{q}")


def test_the_score_of_the_farthest_message_is_exact(broker):
    from celery_redis_plus.broker.arguments.eta import MAX_ETA_MS

    broker.declare("q")
    broker.publish("q", b"far", rank=255, eta=MAX_ETA_MS)
    ((tag, eta),) = broker.client.zrange("delayed:{q}", 0, -1, withscores=True)
    assert int(eta) == MAX_ETA_MS
    assert broker.client.hget(b"message:{q}:" + tag, "score") == b"%d" % (255 * 10**13 + MAX_ETA_MS)
    broker.check()


def test_a_late_original_does_not_take_the_body_of_its_retry_away(broker):
    """Found by the model test: 1 arrives, its retry fences the connection, 2 is retried, and only now its original arrives."""
    broker.declare("q")
    keys = broker.keys.queue("q")

    def stage(number):
        key = keys.message + b"staged.P.%d" % number
        broker.client.hset(key, "body", b"%d" % number)
        broker.client.pexpire(key, 300_000)
        return key

    def send(number, staged, *, retry):
        call_keys = [*keys.publish, keys.producer + b"P", staged]
        return broker.commands.call(script("publish"), call_keys, b"{}", 255, 0, number, int(retry), 60_000, "")

    first, second = stage(1), stage(2)
    assert send(1, first, retry=False)
    assert send(1, stage(1), retry=True) == b""
    second = stage(2)
    assert send(2, second, retry=False) == b""
    assert send(2, second, retry=True)
    assert send(2, stage(2), retry=True) == b""
    # A second retry whose body a first, late one has used up.
    assert send(2, second, retry=True) == b""
    assert [broker.claim_commands.fetch_body(message) for message in broker.claim("q")] == [b"1", b"2"]
    assert broker.client.keys("*staged*") == []
    broker.check()
