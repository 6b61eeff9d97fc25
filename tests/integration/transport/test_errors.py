"""The documented errors are caught by their own classes, by kombu's, and by py-amqp's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import amqp.exceptions
import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus import errors
from tests.support.inbox import Inbox, declare


def declare_otherwise(channel: Any, _: Any) -> None:
    declare(channel, "q", arguments={"x-max-priority": 1})


def declare_exchange_otherwise(channel: Any, _: Any) -> None:
    channel.exchange_declare("e", "topic", durable=True)
    channel.exchange_declare("e", "direct", durable=True)


def ask_for_a_queue(channel: Any, _: Any) -> None:
    channel.queue_declare("nothing", passive=True)


def ask_for_an_exchange(channel: Any, _: Any) -> None:
    channel.exchange_declare("nothing", passive=True)


def browse_nothing(channel: Any, _: Any) -> None:
    channel.basic_consume("nothing", callback=print, arguments={"x-browse": True})


def consume_beside_an_exclusive_one(channel: Any, other: Any) -> None:
    other.basic_consume("q", callback=print, exclusive=True)
    channel.basic_consume("q", callback=print)


def use_the_queue_of_another_connection(channel: Any, other: Any) -> None:
    other.queue_declare("mine", exclusive=True)
    channel.queue_declare("mine", exclusive=True)


def publish_nowhere(channel: Any, _: Any) -> None:
    kombu.Producer(channel).publish("x", routing_key="nothing", mandatory=True)


def publish_immediately(channel: Any, _: Any) -> None:
    kombu.Producer(channel).publish("x", routing_key="q", immediate=True)


def use_a_closed_channel(channel: Any, _: Any) -> None:
    channel.close()
    channel.queue_purge("q")


#: What is refused -> our class, py-amqp's, and the code.
REFUSED: dict[Callable[[Any, Any], None], tuple[type[Exception], type[Exception], int]] = {
    declare_otherwise: (errors.PreconditionFailed, amqp.exceptions.PreconditionFailed, 406),
    declare_exchange_otherwise: (errors.PreconditionFailed, amqp.exceptions.PreconditionFailed, 406),
    ask_for_a_queue: (errors.QueueNotFound, amqp.exceptions.NotFound, 404),
    ask_for_an_exchange: (errors.ExchangeNotFound, amqp.exceptions.NotFound, 404),
    browse_nothing: (errors.QueueNotFound, amqp.exceptions.NotFound, 404),
    consume_beside_an_exclusive_one: (errors.AccessRefused, amqp.exceptions.AccessRefused, 403),
    use_the_queue_of_another_connection: (errors.ResourceLocked, amqp.exceptions.ResourceLocked, 405),
    publish_nowhere: (errors.Unroutable, ChannelError, 312),
    publish_immediately: (errors.NotSupported, ChannelError, 540),
    use_a_closed_channel: (errors.ChannelClosed, ChannelError, 504),
}


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.__name__)
def test_an_error_is_of_each_class_by_which_code_catches_it(connect, refused):
    ours, amqps, code = REFUSED[refused]
    connection, other = connect(), connect().channel()
    channel = connection.channel()
    declare(channel, "q")
    with pytest.raises(ours) as caught:
        refused(channel, other)
    error = caught.value
    assert type(error) is ours
    assert isinstance(error, (errors.BrokerError, errors.CeleryRedisPlusError))
    assert isinstance(error, amqps)
    assert isinstance(error, connection.channel_errors)
    assert not isinstance(error, connection.connection_errors)
    assert (error.code, error.reply_code) == (code, code)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (ours, str(error), code)


def test_all_broker_errors_have_been_met():
    met = {ours for ours, _, _ in REFUSED.values()}
    known = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BrokerError)}
    # No such delivery; a retry after the window; a consumer tag in use.
    elsewhere = {errors.BrokerError, errors.DeliveryNotFound, errors.OutcomeUnknown, errors.NotAllowed}
    assert known - met == elsewhere


def test_an_error_does_not_end_what_the_channel_does(connect):
    channel = connect().channel()
    declare(channel, "q")
    with pytest.raises(errors.PreconditionFailed):
        declare_otherwise(channel, None)
    kombu.Producer(channel).publish("x", routing_key="q")
    assert Inbox(channel, "q").drain(1) == ["x"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_connection_that_was_released_opens_no_channel(broker_url, shards):
    connection = kombu.Connection(broker_url, transport_options={"shards": shards})
    connection.channel()
    connection.release()
    with pytest.raises(errors.ChannelClosed, match="the connection was released; open a new one"):
        connection.channel()
