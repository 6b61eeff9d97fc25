"""What a message may carry: any bytes, any size up to Redis' limit, whatever kombu serializes and compresses."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import kombu
import pytest
from kombu import serialization
from kombu.compression import encoders
from kombu.exceptions import SerializerNotInstalled

from celery_redis_plus.errors import ConsumerCancelled
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import LARGE_BODY

EVERY_BYTE = bytes(range(256)) * 3
VALUES = {
    "text": "Zażółć gęślą jaźń 🥕 \x00 \n \r\n \u2028",
    "number": 2**53,
    "nested": [{"a": [1, None, True, "x" * 100]}],
}


def round_trip(channel, body, **properties):
    publish(channel, "q", body, **properties)
    message = channel.basic_get("q")
    message.ack()
    return message


@pytest.fixture(autouse=True)
def queue(channel):
    declare(channel, "q")


@pytest.mark.parametrize("body", [EVERY_BYTE, b"", b"\n", b"\n\n{}", b"\xff\xfe"], ids=lambda body: repr(body)[:20])
def test_bytes_come_as_they_went(channel, body):
    message = round_trip(channel, body, serializer="raw", content_type="application/data", content_encoding="binary")
    assert message.body == body


@pytest.mark.parametrize("body", ["żółw 🐢", "line\nbreak", "\x00"])
def test_text_comes_as_it_went(channel, body):
    assert round_trip(channel, body).payload == body


@pytest.mark.parametrize("serializer", sorted(set(serialization.registry.name_to_type) - {"binary", "application/data"}))
def test_every_serializer_that_kombu_knows(channel, serializer):
    if serializer in ("raw", "auth"):
        pytest.skip(f"{serializer} carries no values")
    try:
        message = round_trip(channel, VALUES, serializer=serializer)
    except SerializerNotInstalled:
        pytest.skip(f"the library for {serializer} is not installed")
    message.accept = {message.content_type}
    assert message.decode() == VALUES


@pytest.mark.parametrize("compression", sorted(encoders()))
def test_every_compression_that_kombu_knows(channel, compression):
    body = {"text": "repeat " * 1000}
    message = round_trip(channel, body, compression=compression)
    assert message.payload == body
    assert "compression" in message.headers


def test_headers_and_properties_come_as_they_went(channel):
    headers = {"text": "żółw", "number": 1.5, "none": None, "list": [1, "a"], "uuid": UUID(int=5), "decimal": Decimal("1.10")}
    message = round_trip(
        channel, "x", headers=headers, correlation_id="c", reply_to="r", message_id="m", timestamp=17, type="t", app_id="a",
        expiration=10,
    )  # fmt: skip
    got = dict(message.headers)
    assert {name: got[name] for name in headers} == headers
    assert message.properties["correlation_id"] == "c"
    assert message.properties["reply_to"] == "r"
    assert message.properties["message_id"] == "m"
    assert message.delivery_info["routing_key"] == "q"
    assert message.delivery_info["exchange"] == ""
    assert message.delivery_info["redelivered"] is False


def test_nothing_of_ours_travels_in_the_properties(channel):
    message = round_trip(channel, "x")
    assert not [name for name in message.properties if "celery_redis_plus" in name]


@pytest.mark.parametrize("size", [LARGE_BODY - 1, LARGE_BODY, LARGE_BODY + 1, 5 * LARGE_BODY])
def test_sizes_round_the_limit_of_the_scripts(channel, redis_client, size):
    body = (EVERY_BYTE * (size // len(EVERY_BYTE) + 1))[:size]
    assert round_trip(channel, body, serializer="raw", content_type="application/data", content_encoding="binary").body == body
    channel.basic_get("q")
    assert redis_client.keys("message:*") == []


def test_a_large_body_goes_beside_the_scripts_which_stay_short(channel, redis_client):
    body = b"\n\x00\xff" + bytes(64_000_000)
    redis_client.config_set("slowlog-log-slower-than", 100_000)
    redis_client.slowlog_reset()
    publish(channel, "q", body, serializer="raw", content_type="application/data", content_encoding="binary")
    (key,) = redis_client.keys("message:*")
    assert redis_client.hstrlen(key, "body") == len(body)
    assert redis_client.hstrlen(key, "payload") < 1000
    assert redis_client.pttl(key) == -1
    inbox = Inbox(channel, "q")
    inbox.drain(1)
    assert bytes(inbox.messages[0].body) == body
    assert not [entry for entry in redis_client.slowlog_get() if b"EVALSHA" in entry["command"]]


def test_a_large_body_to_two_queues_is_two_messages(channel):
    exchange = kombu.Exchange("e", durable=True)
    for name in ("one", "two"):
        kombu.Queue(name, exchange, routing_key="k", durable=True)(channel).declare()
    body = "x" * (LARGE_BODY + 5)
    kombu.Producer(channel, exchange, routing_key="k").publish(body)
    assert channel.basic_get("one", no_ack=True).payload == body
    assert channel.basic_get("two", no_ack=True).payload == body


def test_a_large_body_is_delayed_redelivered_and_released_whole(connect):
    channel = connect().channel()
    body = "x" * (LARGE_BODY + 5)
    publish(channel, "q", body, headers={"x-delay": 100})
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(1)
    inbox.messages[0].requeue()
    inbox.drain(2)
    channel.close()
    assert Inbox(connect().channel(), "q").drain(1) == [body]


def test_many_large_bodies_are_claimed_in_batches_and_fetched_one_by_one(channel):
    bodies = [chr(ord("a") + number) * (LARGE_BODY + 1) for number in range(8)]
    publish(channel, "q", *bodies)
    assert Inbox(channel, "q", prefetch=0).drain(8) == bodies


def test_a_large_body_whose_queue_was_deleted_after_the_claim_is_not_delivered_empty(connect):
    channel = connect().channel()
    publish(channel, "q", "small", "x" * (LARGE_BODY + 1))
    inbox = Inbox(channel, "q")
    inbox.drain(1)
    connect().channel().queue_delete("q")
    with pytest.raises(ConsumerCancelled):
        inbox.drain(2)
    assert inbox.bodies == ["small"]
    again = Inbox(channel, "q")
    publish(channel, "q", "x" * (LARGE_BODY + 1))
    assert len(again.drain(1)) == 1
