"""What somebody else wrote into the record of an exchange, or among its bindings, ends no publish that does not need it."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

UNREADABLE = ["no json", '["q",5]', '["q"]', "[" * 100_000, b"\xff\xfe", "", '["q","k",{"a":{"__type__":"x"}}]', "{}"]


def routed(name="e", kind="direct", **arguments):
    exchange = kombu.Exchange(name, kind, durable=True, arguments=arguments or None)
    return exchange, kombu.Queue("q", exchange, "k", durable=True)


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_binding_that_cannot_be_read_is_left_out(connect, redis_client, caplog, kind):
    exchange, queue = routed(kind=kind)
    inbox = Inbox(connect().channel(), queue)
    redis_client.hset("binding:{e}", mapping=dict.fromkeys(UNREADABLE, ""))
    channel = connect().channel()
    for body in (1, 2):
        kombu.Producer(channel, exchange).publish(body, routing_key="k")
    assert inbox.drain(2) == [1, 2]
    lines = [line for line in caplog.messages if "it is left out" in line]
    # One that names a type which is none of ours is a table, too.
    assert len(UNREADABLE) - 1 <= len(lines) == len(set(lines))
    channel.queue_delete("q")
    assert redis_client.hget("binding:{e}", '["q","k"]') is None


@pytest.mark.parametrize("version", ["text", "", "1.5", "9" * 30, "-1"])
def test_a_version_of_bindings_that_is_no_number_is_written_anew(connect, redis_client, version):
    exchange, queue = routed()
    inbox = Inbox(connect().channel(), queue)
    producer = kombu.Producer(connect().channel(), exchange)
    producer.publish(1, routing_key="k")
    redis_client.hset("binding:{e}", "version", version)
    producer.publish(2, routing_key="k")
    kombu.Queue("other", exchange, "k", durable=True)(connect().channel()).declare()
    producer.publish(3, routing_key="k")
    assert inbox.drain(3) == [1, 2, 3]
    assert Inbox(connect().channel(), "other").drain(1) == [3]
    assert redis_client.hget("binding:{e}", "version").isdigit()


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"type": 5}', "[" * 100_000, b"\xff"])
def test_a_record_that_cannot_be_read_is_named_and_replaced_by_the_next_declaration(connect, redis_client, text):
    exchange, queue = routed()
    inbox = Inbox(connect().channel(), queue)
    redis_client.hset("exchanges", "e", text)
    channel = connect().channel()
    with pytest.raises(InvalidArgument, match="the record of exchange 'e' cannot be read"):
        channel.basic_publish(channel.prepare_message("x"), "e", "k")
    exchange(connect().channel()).declare()
    channel.basic_publish(channel.prepare_message("y"), "e", "k")
    assert inbox.drain(1) == ["y"]


def test_a_message_whose_alternate_exchange_cannot_be_read_is_kept_as_unroutable(connect, redis_client, caplog):
    exchange, queue = routed(**{"alternate-exchange": "other"})
    channel = connect().channel()
    queue(channel).declare()
    redis_client.hset("exchanges", "other", "no json")
    kombu.Producer(channel, exchange).publish("x", routing_key="nowhere")
    assert "alternate exchange 'other' of exchange 'e' has a record that cannot be read" in caplog.text
    assert redis_client.zcard("dead:{celery_redis_plus.undelivered}") == 1


@pytest.mark.parametrize("damaged", ["letters", "other"])
def test_dead_letters_whose_exchange_cannot_be_read_stay_in_their_queue(connect, redis_client, damaged):
    channel = connect().channel()
    kombu.Exchange("letters", "direct", arguments={"alternate-exchange": "other"})(channel).declare()
    queue = kombu.Queue("q", durable=True, queue_arguments={"x-dead-letter-exchange": "letters"})
    inbox = Inbox(channel, queue, ack=False)
    redis_client.hset("exchanges", damaged, "no json")
    publish(channel, "q", "x")
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: (inbox.rest(0.02), redis_client.zcard("dead:{q}"))[1] == 1, 10)
