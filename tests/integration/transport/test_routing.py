"""Exchanges, bindings and declarations, as every process on the broker sees them."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import Unroutable
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import keys_of
from tests.support.waiting import wait_until


def bound(channel, kind, *bindings, exchange="e"):
    """Declare an exchange and queues bound to it by (queue, routing key or arguments)."""
    target = kombu.Exchange(exchange, kind, durable=True)
    target(channel).declare()
    for queue, binding in bindings:
        arguments = binding if isinstance(binding, dict) else None
        key = "" if arguments else binding
        kombu.Queue(queue, target, routing_key=key, binding_arguments=arguments, durable=True)(channel).declare()
    return target


def sizes(channel, *queues):
    return [channel.queue_sizes(queue).ready for queue in queues]


def test_two_bound_queues_get_two_independent_messages(connect):
    publisher, consumer = connect().channel(), connect().channel()
    exchange = bound(consumer, "direct", ("one", "k"), ("two", "k"))
    kombu.Producer(publisher, exchange, routing_key="k").publish("both")
    one, two = Inbox(consumer, "one"), Inbox(connect().channel(), "two", ack=False)
    assert one.drain(1) == ["both"]
    wait_until(lambda: consumer.queue_sizes("one").unacked == 0)
    assert two.drain(1) == ["both"]
    two.messages[0].requeue()
    assert two.drain(2) == ["both", "both"]
    assert one.rest() == ["both"]


@pytest.mark.parametrize("deleted", ["q", 'a*[b]?"\\', "é"])
def test_a_deleted_queue_takes_its_bindings_with_it_and_no_others_among_many(connect, redis_client, deleted):
    channel = connect().channel()
    bound(channel, "direct", (deleted, "k"), (deleted, "l"), ("aX", "k"))
    bound(channel, "topic", (deleted, "#"), exchange="f")
    # More than one look reads.
    redis_client.hset("binding:{e}", mapping={f'["other{number}","k"]': "" for number in range(1_500)})
    channel.queue_delete(deleted)
    left = {queue for _, _, queue in channel.get_table("e")}
    assert left == {"aX", *(f"other{number}" for number in range(1_500))}
    assert list(channel.get_table("f")) == []


@pytest.mark.parametrize(
    ("routing_key", "queues"),
    [("a.b", {"star", "hash"}), ("a", {"hash"}), ("a.b.c", {"hash", "exact"}), ("b", set()), ("a..b", {"hash"})],
)
def test_topic_patterns_are_those_of_amqp(connect, routing_key, queues):
    publisher, consumer = connect().channel(), connect().channel()
    exchange = bound(consumer, "topic", ("star", "a.*"), ("hash", "a.#"), ("exact", "a.b.c"))
    kombu.Producer(publisher, exchange).publish("x", routing_key=routing_key)
    assert {queue for queue in ("star", "hash", "exact") if sizes(consumer, queue) == [1]} == queues


def test_a_message_that_two_bindings_of_one_queue_match_comes_once(channel):
    exchange = bound(channel, "topic", ("q", "a.*"), ("q", "#"))
    kombu.Producer(channel, exchange).publish("x", routing_key="a.b")
    assert sizes(channel, "q") == [1]


def test_headers_exchange(connect):
    publisher, consumer = connect().channel(), connect().channel()
    exchange = bound(
        consumer, "headers",
        ("all", {"x-match": "all", "format": "pdf", "pages": 2}), ("any", {"x-match": "any", "format": "pdf", "pages": 2}),
    )  # fmt: skip
    producer = kombu.Producer(publisher, exchange)
    for headers in ({"format": "pdf", "pages": 2}, {"format": "pdf"}, {"pages": 3}, {}):
        producer.publish("x", headers=headers)
    assert sizes(consumer, "all", "any") == [1, 2]


def test_a_binding_added_elsewhere_is_seen_by_a_publisher_that_has_cached_the_table(connect):
    publisher, other = connect().channel(), connect().channel()
    exchange = bound(publisher, "direct", ("one", "k"))
    producer = kombu.Producer(publisher, exchange, routing_key="k")
    producer.publish("first")
    bound(other, "direct", ("two", "k"))
    producer.publish("second")
    producer.publish("third")
    assert sizes(other, "one", "two") == [3, 2]


def test_a_binding_removed_elsewhere_is_seen_by_the_next_message(connect):
    publisher, other = connect().channel(), connect().channel()
    exchange = bound(publisher, "direct", ("one", "k"), ("two", "k"))
    producer = kombu.Producer(publisher, exchange, routing_key="k")
    producer.publish("both")
    other.queue_unbind("two", "e", "k")
    producer.publish("one")
    producer.publish("one")
    assert sizes(other, "one", "two") == [3, 1]


def test_a_first_binding_added_elsewhere_serves_a_publisher_that_found_none_before(connect):
    publisher, other = connect().channel(), connect().channel()
    exchange = bound(publisher, "direct")
    producer = kombu.Producer(publisher, exchange, routing_key="k")
    producer.publish("nobody")
    bound(other, "direct", ("q", "k"))
    producer.publish("somebody")
    assert Inbox(other, "q").drain(1) == ["somebody"]


def test_an_unroutable_message_is_an_error_only_if_it_is_mandatory(channel):
    exchange = bound(channel, "direct")
    producer = kombu.Producer(channel, exchange, routing_key="nowhere")
    producer.publish("dropped")
    with pytest.raises(ChannelError, match="nowhere") as caught:
        producer.publish("dropped", mandatory=True)
    assert caught.value.code == 312


def test_an_undeclared_queue_is_made_by_a_publish_to_the_default_exchange(connect):
    publish(connect().channel(), "never declared", "kept")
    channel = connect().channel()
    assert channel.queue_declare("never declared", passive=True).message_count == 1
    assert Inbox(channel, "never declared").drain(1) == ["kept"]


def exists(channel, queue):
    try:
        return channel.queue_declare(queue, passive=True)
    except ChannelError:
        return None


def test_a_mandatory_message_to_a_queue_that_does_not_exist_is_an_error_and_makes_no_queue(channel):
    with pytest.raises(Unroutable, match=r"'misspelt'.*not stored") as caught:
        kombu.Producer(channel).publish("x", routing_key="misspelt", mandatory=True)
    assert caught.value.code == 312
    assert not exists(channel, "misspelt")
    declare(channel, "q")
    kombu.Producer(channel).publish("x", routing_key="q", mandatory=True)
    assert sizes(channel, "q") == [1]


def test_deleting_an_exchange_or_a_queue_removes_bindings_for_all(connect, redis_client):
    one, two = connect().channel(), connect().channel()
    exchange = bound(one, "direct", ("q", "k"), ("r", "k"))
    producer = kombu.Producer(two, exchange, routing_key="k")
    producer.publish("x")
    one.queue_delete("q")
    producer.publish("y")
    producer.publish("z")
    assert not exists(two, "q")
    assert sizes(two, "r") == [3]
    one.exchange_delete("e")
    assert list(two.list_bindings()) == []
    # What is left tells for a while that the bindings were removed, not lost.
    assert redis_client.hkeys("binding:{e}") == [b"version"]
    assert 0 < redis_client.pttl("binding:{e}") <= 3_600_000


def test_an_exchange_that_was_without_bindings_keeps_its_new_ones_for_good(channel, redis_client):
    bound(channel, "direct", ("q", "k"))
    channel.queue_unbind("q", "e", "k")
    assert redis_client.pttl("binding:{e}") > 0
    channel.queue_bind("q", "e", "k")
    assert redis_client.pttl("binding:{e}") == -1


# -- declarations ---------------------------------------------------------------------------------------------------------


def test_redeclaring_a_queue_with_other_arguments_is_a_failed_precondition(connect):
    kombu.Queue("q", max_priority=5, durable=True)(connect().channel()).declare()
    channel = connect().channel()
    with pytest.raises(ChannelError, match="inequivalent arg 'x-max-priority' for queue 'q'") as caught:
        kombu.Queue("q", max_priority=9, durable=True)(channel).declare()
    assert caught.value.code == 406
    kombu.Queue("q", max_priority=5, durable=True)(channel).declare()


def test_redeclaring_an_exchange_of_another_type_is_a_failed_precondition(connect):
    connect().channel().exchange_declare("e", "topic", durable=True)
    channel = connect().channel()
    with pytest.raises(ChannelError, match="inequivalent arg 'type' for exchange 'e'") as caught:
        channel.exchange_declare("e", "direct", durable=True)
    assert caught.value.code == 406
    channel.exchange_declare("e", "topic", durable=True)


def test_a_passive_declaration_asks_and_makes_nothing(channel, redis_client):
    for declare_passively in (
        lambda: channel.queue_declare("nothing", passive=True),
        lambda: channel.exchange_declare("nothing", passive=True),
    ):
        with pytest.raises(ChannelError, match="NOT_FOUND") as caught:
            declare_passively()
        assert caught.value.code == 404
    assert redis_client.keys("*nothing*") == []


def test_a_declaration_tells_ready_messages_and_consumers(connect):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", *range(3))
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    assert tuple(channel.queue_declare("q", durable=True))[:2] == ("q", 3)
    assert tuple(channel.queue_declare("q", passive=True)) == ("q", 3, 0)
    consuming = connect()
    Inbox(consuming.channel(), "q", prefetch=1, ack=False).drain(1)
    wait_until(lambda: channel.queue_declare("q", passive=True).consumer_count == 1)
    # One was delivered, none waits in a buffer beyond the prefetch count.
    assert channel.queue_declare("q", passive=True).message_count == 2
    consuming.close()
    assert tuple(channel.queue_declare("q", passive=True)) == ("q", 3, 0)


def test_an_anonymous_queue_gets_a_name_and_works(channel):
    name = channel.queue_declare("", exclusive=True).queue
    assert name.startswith("amq.gen-")
    publish(channel, name, "hello")
    assert channel.basic_get(name, no_ack=True).payload == "hello"


def test_all_bindings_can_be_listed(channel):
    bound(channel, "topic", ("q", "a.*"), ("r", "#"))
    assert set(channel.list_bindings()) == {("q", "e", "a.*"), ("r", "e", "#")}
    assert set(channel.get_table("e")) == {("a.*", None, "q"), ("#", None, "r")}


# -- purge and delete -----------------------------------------------------------------------------------------------------


def test_purge_removes_what_waits_and_leaves_what_is_claimed(channel):
    declare(channel, "q")
    publish(channel, "q", *range(5))
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    held = channel.basic_get("q")
    assert channel.queue_purge("q") == 5
    assert channel.queue_sizes("q") == (0, 0, 1)
    held.requeue()
    assert Inbox(channel, "q").drain(1) == [0]


def test_a_queue_with_delayed_messages_is_not_empty(channel):
    declare(channel, "q")
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    assert channel.queue_delete("q", if_empty=True) == 0
    assert channel.queue_sizes("q").delayed == 1
    channel.queue_purge("q")
    publish(channel, "q", "delivered")
    assert channel.basic_get("q") is not None
    # As in RabbitMQ, a delivered message does not count.
    channel.queue_delete("q", if_empty=True)
    assert not exists(channel, "q")


def test_delete_heeds_its_conditions(connect):
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", 1, 2)
    assert channel.queue_delete("q", if_empty=True) == 0
    consuming = connect()
    Inbox(consuming.channel(), "q", prefetch=1, ack=False).drain(1)
    wait_until(lambda: channel.queue_declare("q", passive=True).consumer_count == 1)
    assert channel.queue_delete("q", if_unused=True) == 0
    consuming.close()
    assert channel.queue_delete("q", if_unused=True) == 2
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("q", passive=True)


@pytest.mark.parametrize("how", ["queue_purge", "queue_delete"])
def test_fifty_thousand_messages_go_in_bounded_batches(channel, redis_client, how):
    declare(channel, "q")
    publish(channel, "q", "a real one")
    keys = keys_of("q")
    for page in range(10):
        with redis_client.pipeline(transaction=False) as pipeline:
            tags = [f"{page * 5000 + number:08x}.1" for number in range(5000)]
            pipeline.zadd(keys.ready, {tag: 255 * 10**13 + number for number, tag in enumerate(tags)})
            for tag in tags:
                pipeline.hset(keys.message + tag.encode(), "payload", "{}\nx")
            pipeline.execute()
    redis_client.config_resetstat()
    assert getattr(channel, how)("q") == 50_001
    assert redis_client.keys("message:*") == []
    assert redis_client.zcard(keys.ready) == 0
    script_calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    # At most 500 a call.
    assert script_calls >= 101


def test_sizes_of_a_queue_that_does_not_exist_are_zero(channel):
    assert sizes(channel, "nothing") == [0]
    assert channel.queue_purge("nothing") == 0
    assert channel.queue_delete("nothing") == 0
