"""The broadcasts of one publisher come in its order, over several exchanges too, as over kombu's Redis transport."""

from __future__ import annotations

import random
import threading

import kombu
import pytest

from tests.support.inbox import Inbox

ONE, TWO = kombu.Exchange("one", "fanout", durable=True), kombu.Exchange("two", "fanout", durable=True)


def queues(**arguments):
    return [
        kombu.Queue(f"of-{exchange.name}", exchange, durable=True, queue_arguments=arguments or None) for exchange in (ONE, TWO)
    ]


def publish(channel, numbers, choose):
    producers = [kombu.Producer(channel, exchange) for exchange in (ONE, TWO)]
    for number in numbers:
        producers[choose(number)].publish(number)


@pytest.mark.parametrize("publishers", [1, 3])
def test_the_order_of_each_publisher_holds_over_two_exchanges_while_it_sends(connect, publishers):
    inbox = Inbox(connect().channel(), *queues())
    each, bodies = 600, range(publishers * 600)
    choose = random.Random(3)

    def send(first):
        publish(connect().channel(), range(first, first + each), lambda _: choose.randrange(2))

    threads = [threading.Thread(target=send, args=(number * each,)) for number in range(publishers)]
    for thread in threads:
        thread.start()
    found = inbox.exactly(len(bodies))
    for thread in threads:
        thread.join()
    for number in range(publishers):
        mine = [body for body in found if body // each == number]
        assert mine == list(range(number * each, (number + 1) * each))


@pytest.mark.parametrize("rare", [7, 100, 601])
def test_it_holds_for_backlogs_of_unequal_length(connect, rare):
    """A read brings as many of the one as of the other: those that are rare wait for the others before them."""
    durable = {"x-durable-subscriber": True}
    channel = connect().channel()
    for queue in queues(**durable):
        queue(channel).declare()
    channel.connection.client.release()
    publish(connect().channel(), range(1300), lambda number: int(number % rare == 0))
    assert Inbox(connect().channel(), *queues(**durable)).exactly(1300) == list(range(1300))


def test_a_consumer_without_credit_holds_up_no_other_exchange(connect):
    connection = connect()
    slow = Inbox(connection.channel(), queues()[0], prefetch=1, ack=False)
    fast = Inbox(connection.channel(), queues()[1])
    publish(connect().channel(), range(1500), lambda number: number % 2)
    assert fast.exactly(750) == list(range(1, 1500, 2))
    assert slow.bodies == [0]


def test_what_is_requeued_comes_again_in_the_order_of_the_stream(connect):
    inbox = Inbox(connect().channel(), queues()[0], ack=False)
    publish(connect().channel(), range(3), lambda _: 0)
    inbox.drain(3)
    for number in (2, 0):
        inbox.messages[number].requeue()
    assert inbox.drain(5)[3:] == [0, 2]


def test_it_holds_for_what_comes_again_after_a_lost_connection(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), *queues(), ack=False)
    publish(connect().channel(), range(12), lambda number: int(number % 3 == 0))
    assert inbox.exactly(12) == list(range(12))
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(connection.connection_errors):
        inbox.drain(13)
    connection.collect()
    connection.ensure_connection(max_retries=10, interval_start=0.05, interval_step=0)
    assert Inbox(connection.channel(), *queues()).exactly(12) == list(range(12))
