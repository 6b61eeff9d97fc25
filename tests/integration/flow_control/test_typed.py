"""Typed queues."""

from __future__ import annotations

import dataclasses

import kombu
import msgspec
import pydantic
import pytest

from celery_redis_plus.errors import MessageNotAccepted, OptionError
from tests.support.inbox import declare, publish


class Order(pydantic.BaseModel):
    number: int
    lines: list[str] = []


class Parcel(msgspec.Struct):
    weight: float


@dataclasses.dataclass
class Letter:
    to: str
    pages: int = 1

    def __post_init__(self):
        if self.pages < 1:
            raise ValueError("a letter has a page")


def small(publication):
    return len(publication.message["body"]) < 20


@pytest.mark.parametrize(
    ("patterns", "properties", "accepted"),
    [
        (["text/*"], {"content_type": "text/plain"}, True),
        (["text/*"], {"content_type": "application/json"}, False),
        (["application/json"], {"content_type": "application/json"}, True),
        (["order.*", "parcel.?"], {"type": "order.new"}, True),
        (["order.*", "parcel.?"], {"type": "parcel.1"}, True),
        (["order.*", "parcel.?"], {"type": "parcel.12"}, False),
        (["shop.tasks.*"], {"headers": {"task": "shop.tasks.pay"}}, True),
        (["shop.tasks.*"], {"headers": {"task": "Shop.tasks.pay"}}, False),
        (["shop.tasks.*"], {"headers": {"task": "other.shop.tasks.pay"}}, False),
        (["*"], {}, True),
    ],
)
def test_a_message_is_accepted_by_its_task_its_content_type_or_its_type(bounded, channel, patterns, properties, accepted):
    queue = bounded(accept_types=patterns)
    kombu_properties = {"content_type": "application/data", "content_encoding": "utf-8", **properties}
    if accepted:
        publish(channel, queue, b"x", **kombu_properties)
    else:
        with pytest.raises(MessageNotAccepted):
            publish(channel, queue, b"x", **kombu_properties)
    assert channel.queue_sizes(queue).ready == accepted


def test_the_error_names_the_queue_what_came_and_what_is_accepted(bounded, channel):
    queue = bounded("orders", accept_types=["shop.*", "text/plain"])
    with pytest.raises(MessageNotAccepted) as error:
        publish(channel, queue, {}, headers={"task": "mail.send"})
    text = str(error.value)
    for part in ("'orders'", "'shop.*'", "'text/plain'", "task 'mail.send'", "content type 'application/json'"):
        assert part in text


def test_a_publisher_that_did_not_declare_the_queue_is_held_to_its_types(bounded, connect):
    queue = bounded(accept_types=["text/*"])
    other = connect().channel()
    with pytest.raises(MessageNotAccepted):
        publish(other, queue, {"a": 1})
    publish(other, queue, "text")
    assert other.queue_sizes(queue).ready == 1


def test_types_that_were_declared_anew_hold_for_publishers_that_know_the_old_ones(bounded, connect, channel):
    queue = bounded(accept_types=["text/*"])
    other = connect().channel()
    publish(other, queue, "text")
    channel.queue_delete(queue)
    bounded(accept_types=["application/json"])
    with pytest.raises(MessageNotAccepted):
        publish(other, queue, "text")
    publish(other, queue, {"a": 1})
    channel.queue_delete(queue)
    declare(channel, queue)
    publish(other, queue, "text")
    assert channel.queue_sizes(queue).ready == 1


def test_of_several_queues_the_one_that_accepts_has_the_message_and_the_publisher_hears_of_the_other(bounded, channel):
    bounded("typed", accept_types=["text/*"])
    declare(channel, "any")
    channel.exchange_declare("e", "topic")
    for queue in ("typed", "any"):
        channel.queue_bind(queue, "e", "#")
    with pytest.raises(MessageNotAccepted, match="'typed'"):
        kombu.Producer(channel).publish({"a": 1}, exchange="e", routing_key="k")
    assert channel.queue_sizes("any").ready == 1
    assert channel.queue_sizes("typed").ready == 0


@pytest.mark.parametrize(
    ("model", "good", "bad", "said"),
    [
        (Order, {"number": 1}, {"number": "x"}, "valid integer"),
        (Parcel, {"weight": 1.5}, {"weight": "heavy"}, "Expected `float`"),
        (Letter, {"to": "Ada"}, {"to": 1}, "to is 1; expected str"),
        (Letter, {"to": "Ada", "pages": 2}, {"to": "Ada", "pages": 0}, "a letter has a page"),
        (Letter, {"to": "Ada"}, {"from": "Bob"}, "unexpected keyword argument 'from'"),
        (Letter, {"to": "Ada"}, [1], "expected a mapping"),
        (small, {"a": 1}, {"a": "x" * 30}, "refused"),
        ([Order, Parcel], {"weight": 1}, {"size": 1}, "Parcel"),
    ],
)
def test_a_model_or_a_callable_is_asked_at_publish(connect, redis_client, model, good, bad, said):
    channel = connect(accept={"q": model}).channel()
    declare(channel, "q")
    publish(channel, "q", good)
    with pytest.raises(MessageNotAccepted, match=said) as error:
        publish(channel, "q", bad)
    assert "queue 'q' accepts" in str(error.value)
    assert redis_client.zcard("queue:{q}") == 1
    assert channel.queue_counters("q").rejected == 1
    declare(channel, "other")
    publish(channel, "other", bad)


def test_a_model_reads_a_tasks_arguments(connect):
    channel = connect(accept={"q": Order}).channel()
    declare(channel, "q")
    headers = {"task": "shop.pay"}
    for body in ([[], {"number": 1}, {}], [[{"number": 1}], {}, {}]):
        publish(channel, "q", body, headers=headers)
    for body in ([[], {"number": "x"}, {}], [[1, 2], {}, {}], [[{"number": 1}], {"number": 1}, {}]):
        with pytest.raises(MessageNotAccepted):
            publish(channel, "q", body, headers=headers)
    assert channel.queue_sizes("q").ready == 2


@pytest.mark.parametrize("wrong", [3, "Order", int, [Order, None]])
def test_what_is_neither_callable_nor_model_is_refused_at_connect(connect, wrong):
    with pytest.raises(OptionError, match="'q'"):
        connect(accept={"q": wrong})
