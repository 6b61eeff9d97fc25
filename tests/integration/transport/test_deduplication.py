"""Messages with an `x-deduplication-id`."""

from __future__ import annotations

import kombu
import pytest
from celery import Celery
from kombu import pools

from celery_redis_plus import configure_app
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, declare
from tests.support.lost_replies import LostReplies
from tests.support.waiting import wait_until


def send(channel, body, queue="q", *, name="one", **headers):
    headers = {"x-deduplication-id": name, **{f"x-deduplication-{key}": value for key, value in headers.items()}}
    return kombu.Producer(channel).publish(body, routing_key=queue, headers=headers, retry=True)


def move(channel, tag, queue, target):
    with BrokerAdmin(channel.connection.client.as_uri(include_password=True)) as admin:
        return admin.messages.move(tag, target, queue)


def test_a_second_message_with_the_same_id_is_not_stored_and_the_first_is_named(connect, redis_client):
    channel = connect().channel()
    inbox = Inbox(channel, "q")
    assert send(channel, 1) is None
    standing = send(channel, 2)
    assert send(channel, 3, name="another") is None
    inbox.drain(2)
    assert inbox.bodies == [1, 3]
    assert inbox.messages[0].delivery_tag == standing
    # For its TTL it stands, also when it is gone.
    assert send(channel, 4) == standing


def test_an_id_is_free_again_when_its_ttl_is_over(connect):
    channel = connect().channel()
    Inbox(channel, "q")
    assert send(channel, 1, ttl=1) is None
    wait_until(lambda: send(channel, 2, ttl=1) is None)


@pytest.mark.parametrize(("scope", "claimed"), [("until-claimed", True), ("until-acked", False)])
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_an_id_is_free_again_when_its_scope_has_ended(scope, claimed, arguments, connect):
    channel = connect().channel()
    queue = kombu.Queue("q", durable=True, queue_arguments=arguments)
    inbox = Inbox(channel, queue, ack=False)
    assert send(channel, 1, scope=scope) is None
    assert send(channel, 2, scope=scope) is not None
    inbox.drain(1)
    assert (send(channel, 3, scope=scope) is None) == claimed
    inbox.messages[0].ack()
    if not claimed:
        wait_until(lambda: send(channel, 4, scope=scope) is None)


def test_an_id_is_free_again_when_its_message_is_a_dead_letter(connect):
    channel = connect().channel()
    inbox = Inbox(channel, "q", ack=False)
    send(channel, 1, scope="until-acked")
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: send(channel, 2, scope="until-acked") is None)


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
def test_a_large_message_is_deduplicated_too_and_leaves_nothing(arguments, connect, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=arguments)
    assert send(channel, "x" * 1_100_000) is None
    assert send(channel, "x" * 1_100_000) is not None
    assert len(list(redis_client.scan_iter("message:*"))) == 1


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 100}])
@pytest.mark.parametrize("size", [1, 1_100_000])
def test_a_publish_whose_answer_was_lost_is_no_duplicate_of_itself(size, arguments, connect, monkeypatch):
    declare(connect().channel(), "q", arguments=arguments)
    replies = LostReplies(monkeypatch)
    replies.lose(2)
    assert send(connect().channel(), "x" * size) is None
    assert replies.lost == 2
    another = connect().channel()
    assert send(another, 2) is not None
    assert another.queue_sizes("q").ready == 1


def test_a_duplicate_whose_answer_was_lost_is_one(connect, monkeypatch):
    channel = connect().channel()
    declare(channel, "q")
    send(channel, 0)
    replies = LostReplies(monkeypatch)
    replies.lose()
    assert send(channel, 1) is not None
    assert replies.lost == 1


def test_ids_belong_to_a_queue(connect):
    channel = connect().channel()
    Inbox(channel, "q", "r")
    assert send(channel, 1) is None
    assert send(channel, 1, "r") is None


@pytest.mark.parametrize("scope", ["ttl", "until-claimed", "until-acked"])
@pytest.mark.parametrize("queue", ["q", "r"])
def test_a_message_that_was_moved_stands_for_its_id_where_it_was_and_where_it_is(scope, queue, connect):
    channel = connect().channel()
    for name in ("q", "r"):
        declare(channel, name)
    send(channel, 1, scope=scope)
    moved = move(channel, send(channel, 2, scope=scope), "q", "r")
    assert send(channel, 3, queue, scope=scope) == moved
    if scope != "ttl":
        Inbox(channel, "r").drain(1)
        wait_until(lambda: send(channel, 4, queue, scope=scope) is None)


def test_a_message_that_was_moved_stands_for_its_id_for_the_rest_of_the_time_only(connect, redis_client):
    channel = connect().channel()
    for name in ("q", "r"):
        declare(channel, name)
    send(channel, 1, ttl=60_000)
    [key] = redis_client.scan_iter("dedup*")
    # As if nearly all of the time were over.
    redis_client.pexpire(key, 5_000)
    move(channel, send(channel, 2, ttl=60_000), "q", "r")
    keys = list(redis_client.scan_iter("dedup*"))
    assert len(keys) == 2
    assert all(0 < redis_client.pttl(key) <= 5_000 for key in keys)


def test_a_message_that_comes_back_stands_for_its_id(connect):
    channel = connect().channel()
    for name in ("q", "r"):
        declare(channel, name)
    send(channel, 1, scope="until-acked")
    there = move(channel, send(channel, 2, scope="until-acked"), "q", "r")
    back = move(channel, there, "r", "q")
    assert send(channel, 3, scope="until-acked") == back


def test_a_moved_message_leaves_the_one_that_stands_for_its_id_there_alone(connect):
    channel = connect().channel()
    for name in ("q", "r"):
        declare(channel, name)
        send(channel, name, name, scope="until-acked")
    standing = send(channel, 1, "r", scope="until-acked")
    move(channel, send(channel, 2, scope="until-acked"), "q", "r")
    assert send(channel, 3, "r", scope="until-acked") == standing


@pytest.mark.parametrize(("scope", "kept_ms"), [("ttl", 60_000), ("until-claimed", 660_000), ("until-acked", 660_000)])
@pytest.mark.parametrize("conflict", ["keep", "replace"])
def test_an_id_outlives_the_delay_of_its_message(connect, redis_client, scope, kept_ms, conflict):
    channel = connect().channel()
    declare(channel, "q")
    for _ in range(2):
        send(channel, 1, scope=scope, ttl=60_000, delay=600_000, conflict=conflict)
    [key] = redis_client.keys("dedup:*")
    assert kept_ms - 30_000 < redis_client.pttl(key) <= kept_ms + 10


@pytest.mark.parametrize(("header", "value"), [("ttl", 0), ("ttl", "soon"), ("scope", "for ever")])
def test_what_the_headers_cannot_be_is_refused(header, value, connect):
    channel = connect().channel()
    Inbox(channel, "q")
    with pytest.raises(InvalidArgument, match=f"x-deduplication-{header}"):
        send(channel, 1, **{header: value})


@pytest.mark.parametrize("scope", ["ttl", "until-acked"])
def test_the_result_of_a_deduplicated_task_has_the_id_of_the_task_that_runs(scope, broker_url):
    app = configure_app(Celery("once", broker=broker_url, set_as_current=False))

    @app.task(name=f"once.{scope}", shared=False)
    def run():
        """Never called."""

    once = {"x-deduplication-id": "one", "x-deduplication-scope": scope}
    first = run.apply_async(headers=once, task_id="any text, also this")
    assert run.apply_async(headers=once).id == first.id == "any text, also this"
    assert app.send_task(f"once.{scope}", headers=once).id == first.id
    other = run.apply_async(headers={**once, "x-deduplication-id": "two"})
    assert other.id != first.id
    assert run.delay().id not in {first.id, other.id}
    app.close()
    pools.reset()
