"""A channel whose queues are in three shards."""

from __future__ import annotations

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.broker.queues.queues import Sizes
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.errors import InvalidArgument, InvalidQueueName, OptionError, QueueFull, ShardUnreachable
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

NOTHING = Sizes(0, 0, 0)
QUEUES = [named(shard) for shard in range(SHARDS)]


def keys_by_shard(client):
    """Return the keys of each shard."""
    prefixes = [prefix.encode() for prefix in shard_prefixes("", SHARDS)]
    found = [set(client.keys("*"))]
    for prefix in prefixes[1:]:
        found.append({key for key in found[0] if key.startswith(prefix)})
    found[0] = found[0].difference(*found[1:])
    return found


def test_each_queue_has_its_keys_in_its_shard(channel, redis_client):
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, "x")
    for shard, keys in enumerate(keys_by_shard(redis_client)):
        prefix = "" if shard == 0 else shard_prefixes("", SHARDS)[shard]
        assert {f"{prefix}queue:{{{QUEUES[shard]}}}".encode(), f"{prefix}database_id".encode()} <= keys
        assert not [key for key in keys for other in QUEUES if other != QUEUES[shard] and f"{{{other}}}".encode() in key]


def test_messages_of_all_shards_are_delivered_and_settled(connect_shards, redis_client):
    channel = connect_shards().channel()
    inbox = Inbox(channel, *QUEUES)
    for number in range(30):
        publish(connect_shards().channel() if not number else channel, QUEUES[number % 3], number)
    assert sorted(inbox.drain(30)) == list(range(30))
    wait_until(lambda: all(channel.queue_sizes(queue) == NOTHING for queue in QUEUES))
    assert all(channel.queue_counters(queue).published == 10 for queue in QUEUES)


def test_a_publish_over_the_default_exchange_is_one_call(channel, redis_client):
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, "first")
    redis_client.config_resetstat()
    for queue in QUEUES:
        publish(channel, queue, "second")
    calls = {name: one["calls"] for name, one in redis_client.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] == 3
    assert not {"cmdstat_hgetall", "cmdstat_zscore", "cmdstat_hget"} & {name for name, count in calls.items() if count > 12}


def test_the_prefetch_limit_holds_over_all_shards(connect_shards):
    channel, publisher = connect_shards().channel(), connect_shards().channel()
    inbox = Inbox(channel, *QUEUES, prefetch=4, ack=False)
    for queue in QUEUES:
        publish(publisher, queue, *range(5))
    inbox.drain(4)
    assert not inbox.pump(0.3)
    assert sum(publisher.queue_sizes(queue).unacked for queue in QUEUES) == 4
    while len(inbox.messages) < 15:
        inbox.messages[len(inbox.messages) - 4].ack()
        inbox.drain(len(inbox.messages) + 1)
    for message in inbox.messages:
        if not message.acknowledged:
            message.ack()
    wait_until(lambda: all(publisher.queue_sizes(queue) == NOTHING for queue in QUEUES))


def test_acks_over_the_channel_find_the_shard(connect_shards):
    channel = connect_shards().channel()
    inbox = Inbox(channel, *QUEUES, ack=False)
    for queue in QUEUES:
        publish(channel, queue, 1, 2)
    inbox.drain(6)
    channel.basic_reject(inbox.messages[5].delivery_tag, requeue=True)
    channel.basic_ack(inbox.messages[4].delivery_tag, multiple=True)
    wait_until(lambda: sum(sum(channel.queue_sizes(queue)) for queue in QUEUES) == 1)
    inbox.drain(7)
    assert inbox.messages[6].headers["x-acquired-count"] == 2


def test_a_message_of_any_shard_settles_those_before_it(connect_shards):
    channel = connect_shards().channel()
    channel.basic_qos(0, 6)
    inbox = Inbox(channel, *QUEUES, ack=False)
    for queue in QUEUES:
        publish(channel, queue, 1, 2)
    inbox.drain(6)
    inbox.messages[5].ack(multiple=True)
    wait_until(lambda: all(channel.queue_sizes(queue) == NOTHING for queue in QUEUES))
    for queue in QUEUES:
        publish(channel, queue, 3)
    assert len(inbox.drain(9)) == 9


def test_the_channel_of_a_message_reaches_all_shards(connect_shards):
    """A consumer that answers uses it: `Producer(message.channel)`."""
    channel, other = connect_shards().channel(), connect_shards().channel()
    declare(other, *QUEUES)
    publish(other, QUEUES[0], "question")
    inbox = Inbox(channel, QUEUES[0], ack=False)
    inbox.drain(1)
    (message,) = inbox.messages
    kombu.Queue(QUEUES[1], kombu.Exchange("answers", durable=True), "k", durable=True)(message.channel).declare()
    kombu.Producer(message.channel).publish("by queue", routing_key=QUEUES[2])
    kombu.Producer(message.channel).publish("by exchange", exchange="answers", routing_key="k")
    assert other.basic_get(QUEUES[2]).payload == "by queue"
    assert other.basic_get(QUEUES[1]).payload == "by exchange"


def test_a_message_can_be_got_and_given_back_with_the_channel(connect_shards):
    channel, other = connect_shards().channel(), connect_shards().channel()
    declare(other, *QUEUES)
    for queue in QUEUES:
        publish(other, queue, queue)
        assert channel.basic_get(queue).payload == queue
    channel.close()
    wait_until(lambda: all(other.queue_sizes(queue).ready == 1 for queue in QUEUES))


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_an_exchange_routes_to_queues_of_all_shards(connect_shards, kind):
    publisher, binder = connect_shards(), connect_shards().channel()
    exchange = kombu.Exchange("orders", kind)
    for queue in QUEUES[:2]:
        kombu.Queue(queue, exchange, "new")(binder).declare()
    producer = publisher.Producer(exchange=exchange)
    producer.publish("one", routing_key="new")
    producer.publish("two", routing_key="new")
    # In a shard that had nothing for this key, by another connection.
    kombu.Queue(QUEUES[2], exchange, "new")(binder).declare()
    producer.publish("three", routing_key="new")
    assert [binder.queue_sizes(queue).ready for queue in QUEUES] == [3, 3, 1]
    assert sorted(queue for _, _, queue in binder.get_table("orders")) == sorted(QUEUES)
    binder.queue_unbind(QUEUES[0], "orders", "new")
    connect_shards().Producer(exchange=exchange).publish("four", routing_key="new")
    assert [binder.queue_sizes(queue).ready for queue in QUEUES] == [3, 4, 2]


def test_a_publish_to_several_shards_that_breaks_off_is_finished_by_its_retry(connect_shards, monkeypatch):
    connection, looker = connect_shards(), connect_shards().channel()
    exchange = kombu.Exchange("orders", "direct")
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "new")(looker).declare()
    # By its name: kombu 5.6.0 declares an exchange over the channel that is lost.
    producer = connection.Producer()
    producer.publish("first", exchange="orders", routing_key="new")
    broken = connection.transport.open(1).session
    with monkeypatch.context() as patched:
        patched.setattr(type(broken.connector), "open", refuse_shard(1))
        broken.commands.abort()
        with pytest.raises(ShardUnreachable, match="shard 1 of 3"):
            producer.publish("second", exchange="orders", routing_key="new", retry=False)
    wait_until(lambda: not connection.transport.shard_state(1).is_down, 10)
    assert [looker.queue_sizes(queue).ready for queue in QUEUES] == [2, 1, 2]
    commands = connection.transport.open(1).session.commands
    with monkeypatch.context() as patched:
        patched.setattr(type(broken.connector), "open", refuse_shard(1))
        commands.abort()
        errors = []

        def mend(error, interval):
            errors.append(error)
            patched.undo()

        policy = {"max_retries": 20, "errback": mend}
        producer.publish("third", exchange="orders", routing_key="new", retry=True, retry_policy=policy)
    assert errors
    assert [looker.queue_sizes(queue).ready for queue in QUEUES] == [3, 2, 3]


def test_a_broadcast_reaches_queues_of_all_shards(connect_shards):
    for shard in range(SHARDS):
        exchange = kombu.Exchange(named(shard, "news"), "fanout")
        queues = [kombu.Queue(f"{queue}.{exchange.name}", exchange, auto_delete=True) for queue in QUEUES]
        connection = connect_shards()
        inbox = Inbox(connection.channel(), *queues)
        connect_shards().Producer(exchange=exchange).publish("all")
        assert inbox.drain(3) == ["all"] * 3
        assert {message.queue for message in inbox.messages} == {queue.name for queue in queues}
        channel = connect_shards().channel()
        assert len(channel.fanout_subscribers(exchange.name)) == 3
        inbox.cancel()
        wait_until(lambda: not [one for one in channel.fanout_subscribers(exchange.name) if one.state == "live"])  # noqa: B023


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_queue_that_is_unbound_hears_no_broadcast_by_whichever_shard_it_comes(connect_shards, shard):
    exchange = kombu.Exchange(named(shard, "news"), "fanout")
    unbound, bound = (kombu.Queue(named(1, name), exchange, durable=True) for name in ("unbound", "bound"))
    channel = connect_shards().channel()
    for queue in (unbound, bound):
        queue(channel).declare()
    channel.queue_unbind(unbound.name, exchange.name)
    inbox = Inbox(channel, *(kombu.Queue(queue.name, no_declare=True) for queue in (unbound, bound)))
    publisher = connect_shards()
    publisher.Producer(exchange=exchange).publish("all")
    inbox.drain(1)
    publish(publisher.channel(), unbound.name, "after")
    inbox.drain(2)
    assert [(message.queue, message.payload) for message in inbox.messages] == [(bound.name, "all"), (unbound.name, "after")]


def test_the_refusal_of_one_shard_is_told_though_others_take_the_message(channel):
    exchange = kombu.Exchange("orders", "direct")
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "k", queue_arguments=full if queue == QUEUES[1] else None)(channel).declare()
    producer = kombu.Producer(channel, exchange, routing_key="k")
    producer.publish("first")
    with pytest.raises(QueueFull):
        producer.publish("second")
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [2, 1, 2]


def test_a_message_without_a_queue_is_kept_where_the_command_line_finds_it(channel):
    channel.exchange_declare("orders", "direct", durable=True)
    publish_to = kombu.Producer(channel, kombu.Exchange("orders", "direct"))
    publish_to.publish("lost", routing_key="nowhere")
    with pytest.raises(ChannelError, match="no queue takes"):
        publish_to.publish("lost", routing_key="nowhere", mandatory=True)
    returned = []
    with_return = kombu.Producer(channel, kombu.Exchange("orders", "direct"), on_return=lambda *parts: returned.append(parts))
    with_return.publish("lost", routing_key="nowhere", mandatory=True)
    kombu.Producer(channel).publish("lost", routing_key="nowhere", mandatory=True)
    assert [(place, key, message.payload) for _, place, key, message in returned] == [
        ("orders", "nowhere", "lost"),
        ("", "nowhere", "lost"),
    ]
    shard = channel.of_queue("celery_redis_plus.undelivered")
    assert [letter.body for letter in dead_letters_of(shard).page("celery_redis_plus.undelivered")] == [b"lost"]


def test_a_batch_goes_to_all_shards(channel):
    declare(channel, *QUEUES)
    batch = channel.create_publish_batch(10)
    for number in range(30):
        message = channel.prepare_message(str(number), properties={"delivery_tag": str(number)})
        message["properties"].pop("delivery_tag")
        batch.publish(message, "", QUEUES[number % 3])
    batch.flush()
    batch.close()
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [10, 10, 10]


def test_what_waits_in_a_batch_is_there_before_a_publish_that_is_refused(channel):
    declare(channel, *QUEUES[:2])
    declare(channel, QUEUES[2], arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(channel, QUEUES[2], "fills it")
    batch = channel.create_publish_batch(10)
    for queue in QUEUES[:2]:
        batch.publish(channel.prepare_message("x"), "", queue)
    with pytest.raises(QueueFull):
        batch.publish(channel.prepare_message("x"), "", QUEUES[2])
    batch.discard()
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [1, 1, 1]


def test_a_rejected_broadcast_goes_to_the_dead_letter_exchange_of_its_queue(connect_shards):
    """The queue is in another shard than the fanout exchange that the broadcast came by."""
    connection, channel = connect_shards(), connect_shards().channel()
    grave, news = named(2, "grave"), kombu.Exchange(named(0, "news"), "fanout")
    declare(channel, grave)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": grave}
    inbox = Inbox(connection.channel(), kombu.Queue(named(1, "heard"), news, queue_arguments=arguments), ack=False)
    connect_shards().Producer(exchange=news).publish("all")
    inbox.drain(1)
    inbox.messages[0].reject()
    wait_until(lambda: channel.queue_sizes(grave).ready == 1, 20)


@pytest.mark.parametrize("arguments", [{"x-browse": True}, {"x-filter": {"x-match": "all", "a": "1"}}])
def test_what_broadcasts_cannot_heed_is_refused_whatever_shard_they_come_by(channel, arguments):
    for shard in range(SHARDS):
        exchange = kombu.Exchange(named(shard, "news"), "fanout")
        queue = kombu.Queue(named(1, f"heard-{shard}-"), exchange)
        queue(channel).declare()
        with pytest.raises(InvalidArgument, match="bound to the fanout exchange"):
            channel.basic_consume(queue.name, arguments=arguments)


def test_copies_of_browsed_messages_come_from_all_shards(channel, connect_shards):
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, queue)
    seen, looker = [], connect_shards()
    looking = looker.channel()
    for queue in QUEUES:
        looking.basic_consume(queue, callback=lambda message: seen.append(message.payload), arguments={"x-browse": True})
    wait_until(lambda: looker.drain_events(timeout=1) or len(seen) == 3, 20)
    assert sorted(seen) == sorted(QUEUES)
    assert all(channel.queue_sizes(queue).ready == 1 for queue in QUEUES)


def test_exclusive_and_auto_delete_queues_of_all_shards_go_with_their_connection(connect_shards):
    connection, other = connect_shards(), connect_shards().channel()
    channel = connection.channel()
    declare(channel, *QUEUES, exclusive=True, durable=False)
    for queue in QUEUES:
        with pytest.raises(ChannelError, match="exclusive access"):
            other.queue_declare(queue, passive=True)
    leaving = [kombu.Queue(f"{queue}.leaving", auto_delete=True) for queue in QUEUES]
    inbox = Inbox(channel, *leaving)
    inbox.cancel()
    for queue in leaving:
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            other.queue_declare(queue.name, passive=True)
    connection.release()
    for queue in QUEUES:
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            other.queue_declare(queue, passive=True)


def test_the_length_of_a_queue_of_any_shard_is_what_programs_of_kombus_redis_read(channel):
    declare(channel, *QUEUES)
    for number, queue in enumerate(QUEUES):
        publish(channel, queue, *range(number + 1))
    assert [channel.client.llen(queue) for queue in QUEUES] == [1, 2, 3]


@pytest.mark.parametrize("flushed", [False, True])
def test_tags_of_different_shards_are_never_the_same(channel, redis_client, flushed):
    declare(channel, *QUEUES)
    if flushed:
        redis_client.flushall()
    for queue in QUEUES:
        publish(channel, queue, "x")
    ids = {channel.basic_get(queue).delivery_tag.rpartition(".")[2] for queue in QUEUES}
    assert len(ids) == SHARDS


# -- refused


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1), (3, 4)])
def test_another_number_of_shards_is_refused(connect, first, second):
    declare(connect(shards=first).channel(), "q")
    with pytest.raises(OptionError, match=rf"shards={second} is not allowed .* allowed: {first}, .*shards raise"):
        connect(shards=second)


def test_a_publisher_that_came_first_learns_of_shards_when_it_publishes(connect, connect_shards):
    first = connect().channel()
    declare(connect_shards().channel(), *QUEUES)
    with pytest.raises(OptionError, match="shards=1 is not allowed"):
        publish(first, QUEUES[1], "lost")


def test_a_process_that_came_first_learns_of_shards_when_it_declares(connect):
    early = connect()
    connect(shards=3)
    with pytest.raises(OptionError, match="shards=1 is not allowed"):
        declare(early.channel(), "q")
    with pytest.raises(OptionError, match="shards=1 is not allowed"):
        early.channel().basic_publish(early.channel().prepare_message("x"), "orders", "new")


@pytest.mark.parametrize("name", [5, b"q", "q\ud800"])
def test_a_wrong_name_of_a_queue_is_named(channel, name):
    for call in (channel.queue_declare, channel.basic_get, channel.basic_consume):
        with pytest.raises(InvalidQueueName, match="allowed is a str of 1 to 4096 bytes of UTF-8"):
            call(name)
    with pytest.raises(InvalidQueueName, match="allowed is a str of 1 to 4096 bytes of UTF-8"):
        channel.basic_publish(channel.prepare_message("x"), "", name)


def test_the_option_of_lanes_names_shards(connect):
    with pytest.raises(OptionError, match="'cluster_lanes' is not known any more; allowed is 'shards'"):
        connect(cluster_lanes=3)
