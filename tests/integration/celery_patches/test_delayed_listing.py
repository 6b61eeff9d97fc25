"""The broker's list of delayed messages, and what `inspect scheduled` makes of odd ones."""

import asyncio
from datetime import UTC, datetime

import pytest
from kombu import Connection

from celery_redis_plus.broker.queues.delayed import LISTING_BYTES, list_delayed
from celery_redis_plus.integration.flower import FlowerBroker
from celery_redis_plus.integration.scheduled import held_by_broker

HOUR_MS = 3_600_000


@pytest.fixture
def transport(broker_url):
    with Connection(broker_url) as connection:
        connection.connect()
        yield connection.transport


@pytest.fixture
def publish(broker_url):
    """Publish a message that is due after some hours."""
    with Connection(broker_url) as connection:
        producer = connection.Producer()

        def send(body, hours=1, queue="q", headers=None, **options):
            producer.publish(body, routing_key=queue, headers={"x-delay": hours * HOUR_MS, **(headers or {})}, **options)

        yield send


def listed(transport, limit=1000):
    session = transport.session
    return list_delayed(session.commands, session.keys, "q", limit)


def test_listing_has_the_next_due_first_and_the_total(transport, publish):
    for hours in (3, 1, 2, *range(10, 260)):
        publish(str(hours), hours)
    first = listed(transport, 3)
    all_of_them = listed(transport)

    assert [message.body for message in first.messages] == [b"1", b"2", b"3"]
    assert first.total == all_of_them.total == 253
    assert [message.body for message in all_of_them.messages[3:]] == [b"%d" % hours for hours in range(10, 260)]
    assert first.messages[1].eta_ms - first.messages[0].eta_ms == pytest.approx(HOUR_MS, abs=1000)


def test_listing_of_nothing_is_empty(transport):
    assert listed(transport).messages == []
    assert listed(transport).total == 0
    assert held_by_broker(transport, [], app=None, hostname="h") == []


def test_bodies_that_travel_beside_the_scripts_are_left_where_they_are(transport, publish):
    publish(b"x" * 2_000_000, content_type="application/data", content_encoding="binary")
    [message] = listed(transport).messages

    assert message.body is None
    assert b"application/data" in message.envelope


def test_listing_ends_before_it_weighs_too_much(transport, publish):
    size = 900_000
    for _ in range(30):
        publish(b"x" * size, content_type="application/data", content_encoding="binary")
    listing = listed(transport)

    assert LISTING_BYTES < len(listing.messages) * size < LISTING_BYTES + 2_000_000
    assert listing.total == 30


def test_odd_tasks_are_shown_as_far_as_they_can_be_read(transport, publish, celery_app):
    task = {"id": "1", "task": "t", "argsrepr": "(1,)", "kwargsrepr": "{}"}
    publish(b"\x80", headers=task, content_type="application/x-python-serialize", content_encoding="binary")
    publish("{broken", hours=2, headers={**task, "id": "2"}, content_type="application/json", content_encoding="utf-8")
    publish({"task": "first protocol", "id": "3", "args": [1], "kwargs": {}}, hours=3)
    publish([[1], {}, {}], hours=4, headers={**task, "id": "4", "eta": None, "shadow": "other name"}, compression="zlib")
    publish("no task", hours=5)
    listing = held_by_broker(transport, ["q", "empty"], app=celery_app(), hostname="h")

    assert [one["request"]["id"] for one in listing] == ["1", "2", "3", "4"]
    assert [one["request"]["args"] for one in listing] == ["(1,)", "(1,)", [1], [1]]
    assert [one["request"]["name"] for one in listing] == ["t", "t", "first protocol", "other name"]
    assert not any("broker" in one for one in listing), "a complete list has Celery's own shape"
    for one in listing:
        assert datetime.fromisoformat(one["eta"]) > datetime.now(UTC)


def test_queues_share_the_limit(transport, publish, celery_app):
    for queue in ("q", "r"):
        for hours in range(1, 9):
            publish([[hours], {}, {}], hours, queue, {"id": f"{queue}{hours}", "task": "t"})
    listing = held_by_broker(transport, ["q", "r"], app=celery_app(), hostname="h", limit=4)

    assert [one["request"]["id"] for one in listing] == ["q1", "r1", "q2", "r2"]
    assert listing[0]["broker"] == {"queue": "q", "delayed": 8}


def test_a_queue_that_cannot_be_read_keeps_no_other_from_the_list(transport, publish, celery_app, redis_client, caplog):
    for queue in ("bad", "good"):
        publish([[], {}, {}], 1, queue, {"id": queue, "task": "t"})
    redis_client.delete("delayed:{bad}")
    redis_client.set("delayed:{bad}", "foreign")
    entries = held_by_broker(transport, ["bad", "good"], app=celery_app(), hostname="h")
    assert [entry["request"]["id"] for entry in entries] == ["good"]
    assert "queue 'bad' has delayed tasks that cannot be listed" in caplog.text


def test_flower_gets_the_lengths_of_other_queues(broker_url, publish, redis_client):
    for queue in ("bad", "good"):
        publish("x", queue=queue)
    redis_client.set("queue:{bad}", "foreign")
    assert [one["name"] for one in asyncio.run(FlowerBroker(broker_url).queues(["bad", "good", "none"]))] == ["good"]
