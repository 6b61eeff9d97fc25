"""A queue is deleted and declared again by another process: running consumers and publishers go by its new arguments."""

from __future__ import annotations

import kombu

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

#: Sweeps, by which a consuming process notices, come every 0.5 s then.
QUICKLY = {"visibility_timeout": 3}


def to(queue: str) -> dict[str, str]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def test_dead_letters_of_a_running_consumer_go_where_the_last_declaration_says(connect, declare_elsewhere):
    connection = connect(**QUICKLY)
    channel, looks = connection.channel(), connect().channel()
    declare(channel, "old", "new")
    declare(channel, "q", arguments=to("old"))
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True), ack=False)
    publish(looks, "q", "first")
    inbox.drain(1)
    inbox.messages[-1].reject()
    wait_until(lambda: looks.queue_sizes("old").ready == 1)
    declare_elsewhere("q", arguments=to("new"))
    publish(looks, "q", "second")
    inbox.drain(2)
    inbox.messages[-1].reject()
    wait_until(lambda: looks.queue_sizes("new").ready + looks.queue_sizes("old").ready == 2)
    assert (looks.queue_sizes("old").ready, looks.queue_sizes("new").ready) == (1, 1)


def test_a_priority_is_capped_by_the_last_declaration(channel, declare_elsewhere):
    declare(channel, "q", arguments={"x-max-priority": 10})
    publish(channel, "q", "a", priority=9)
    declare_elsewhere("q", arguments={"x-max-priority": 2})
    publish(channel, "q", "nine", priority=9)
    publish(channel, "q", "two", priority=2)
    inbox = Inbox(channel, kombu.Queue("q", no_declare=True))
    assert inbox.drain(2) == ["nine", "two"]
    assert [message.properties["priority"] for message in inbox.messages] == [2, 2]


def test_a_priority_is_capped_where_the_queue_was_declared_after_the_first_publish(channel, broker_url, redis_client):
    # Its first publisher made it, without knowing its arguments.
    publish(channel, "q", "a", priority=9)
    record = redis_client.hget("meta:{q}", "id")
    with kombu.Connection(broker_url) as other:
        declare(other.channel(), "q", arguments={"x-max-priority": 2})
    assert redis_client.hget("meta:{q}", "id") != record
    publish(channel, "q", "nine", priority=9)
    publish(channel, "q", "two", priority=2)
    assert Inbox(channel, kombu.Queue("q", no_declare=True)).drain(3) == ["a", "nine", "two"]


def test_a_cap_of_one_queue_does_not_reach_the_next_one_that_a_message_is_routed_to(channel):
    exchange = kombu.Exchange("x", "topic")
    for name, cap in (("capped", 2), ("free", None)):
        arguments = {} if cap is None else {"x-max-priority": cap}
        kombu.Queue(name, exchange, routing_key="#", queue_arguments=arguments)(channel).declare()
    kombu.Producer(channel).publish("m", exchange="x", routing_key="k", priority=9)
    found = {queue: channel.basic_get(queue).properties["priority"] for queue in ("capped", "free")}
    assert found == {"capped": 2, "free": 9}


def test_a_queue_whose_messages_expire_is_swept_after_it_was_declared_again(channel, declare_elsewhere, redis_client):
    declare(channel, "q")
    publish(channel, "q", "a", expiration=60)
    assert redis_client.sismember("always_swept", "q")
    declare_elsewhere("q")
    # A look for queues that are always swept came between the deletion and the new declaration.
    redis_client.srem("always_swept", "q")
    publish(channel, "q", "b", expiration=60)
    assert redis_client.sismember("always_swept", "q")
    assert channel.queue_sizes("q").ready == 1


def test_the_end_of_a_consumer_does_not_delete_a_queue_that_is_not_auto_delete_any_more(channel, declare_elsewhere):
    inbox = Inbox(channel, kombu.Queue("q", auto_delete=True))
    declare_elsewhere("q")
    publish(channel, "q", *range(3))
    inbox.drain(3)
    publish(channel, "q", "kept")
    inbox.consumer.cancel()
    assert channel.queue_sizes("q").ready == 1
