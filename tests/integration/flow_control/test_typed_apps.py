"""Typed queues of Celery apps."""

from __future__ import annotations

import json

import kombu
import pydantic
import pytest
from celery import Celery
from kombu import pools
from kombu.serialization import dumps

from celery_redis_plus import configure_app
from celery_redis_plus.errors import MessageNotAccepted


class Order(pydantic.BaseModel):
    number: int


@pytest.fixture
def shop(broker_url):
    app = configure_app(Celery("shop", broker=broker_url, set_as_current=False), accept={"orders": Order})
    yield app
    app.close()
    pools.reset()


def test_a_task_is_validated_when_it_is_published(shop, redis_client):
    take = shop.signature("shop.take", queue="orders")
    take.delay(number=1)
    take.delay({"number": 2})
    for arguments, keywords in (((), {"number": "many"}), (("x",), {}), ((1, 2), {})):
        with pytest.raises(MessageNotAccepted, match=r"queue 'orders' accepts Order; what came is task 'shop.take'"):
            take.apply_async(arguments, keywords)
    shop.signature("shop.other").delay(number="many")
    assert redis_client.zcard("queue:{orders}") == 2
    assert redis_client.zcard("queue:{celery}") == 1


def test_what_the_queue_was_declared_with_holds_for_tasks(shop):
    queue = kombu.Queue("mails", durable=True, queue_arguments={"x-accept-types": ["mail.*"]})
    shop.signature("mail.send").apply_async(queue=queue)
    with pytest.raises(MessageNotAccepted, match=r"'mails' accepts 'mail.\*'.*task 'shop.take'"):
        shop.signature("shop.take").apply_async(queue=queue)


def test_a_later_call_replaces_what_is_accepted(shop):
    configure_app(shop)
    with pytest.raises(MessageNotAccepted):
        shop.signature("shop.take", queue="orders").delay(number="x")
    configure_app(shop, accept={})
    shop.signature("shop.take", queue="orders").delay(number="x")


def test_what_is_accepted_can_be_sent_around_as_text(shop):
    """`inspect stats` and Flower do so."""
    configure_app(shop, accept={"orders": [Order, print], "mails": len})
    with shop.connection_for_write() as connection:
        connection.connect()
        shown = json.loads(dumps(connection.info(), "json")[2])["transport_options"]["accept"]

    assert shown == {"orders": "Order, print", "mails": "len"}


def test_a_clone_of_a_connection_accepts_the_same(shop):
    with shop.connection_for_write() as connection, connection.clone() as clone:
        connection.connect()
        for one in (clone, connection.clone()):
            with pytest.raises(MessageNotAccepted):
                kombu.Producer(one).publish({"number": "x"}, routing_key="orders")
            one.release()
