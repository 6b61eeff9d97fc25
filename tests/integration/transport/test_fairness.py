"""A consumer of several queues, and a connection of several channels, serve all of them in turn, whatever the credit."""

from __future__ import annotations

import kombu
import pytest

from tests.support.inbox import Inbox, declare, publish

LIMITED = {"x-max-unacked": 1000}
#: Messages of a claim without a prefetch limit.
BATCH = 100


def receive(*inboxes, count):
    """Take deliveries of one connection until there are `count` in all; return the names of their queues, in order."""
    order = []
    for inbox in inboxes:
        take = inbox.consumer.on_message

        def noted(message, take=take):
            order.append(message.delivery_info["routing_key"])
            take(message)

        inbox.consumer.on_message = noted
    while len(order) < count:
        assert inboxes[0].pump(5), f"{len(order)} of {count}"
    return order


def fill(channel, counts, arguments=None):
    for name, count in counts.items():
        declare(channel, name, arguments=arguments)
        publish(channel, name, *range(count))


def as_declared(names, arguments):
    return [kombu.Queue(name, durable=True, queue_arguments=arguments) for name in names]


@pytest.mark.sample(6)
@pytest.mark.parametrize("arguments", [None, LIMITED], ids=["plain", "rules"])
@pytest.mark.parametrize("queues", [2, 10, 100])
@pytest.mark.parametrize(("prefetch", "within"), [(1, 1), (4, 2), (0, 2)])
def test_one_message_behind_a_full_queue_is_among_the_first(connect, queues, prefetch, within, arguments):
    names = [f"q{number:03}" for number in range(queues)]
    fill(connect().channel(), dict.fromkeys(names, 0) | {names[0]: 150, names[-1]: 1}, arguments)
    inbox = Inbox(connect().channel(), *as_declared(names, arguments), prefetch=prefetch)
    order = receive(inbox, count=151)
    assert order.index(names[-1]) <= within


@pytest.mark.parametrize("arguments", [None, LIMITED], ids=["plain", "rules"])
@pytest.mark.parametrize("prefetch", [1, 3, 7, 0])
def test_full_queues_are_served_in_turn(connect, prefetch, arguments):
    fill(connect().channel(), {"a": 60, "b": 60, "c": 60}, arguments)
    order = receive(Inbox(connect().channel(), *as_declared("abc", arguments), prefetch=prefetch), count=180)
    for at in range(0, 170, 10):
        assert set(order[at : at + 7]) == {"a", "b", "c"}, order
    assert all(abs(order[:90].count(name) - 30) <= 3 for name in "abc"), order


@pytest.mark.parametrize("prefetch", [1, 10])
@pytest.mark.parametrize("queues", [2, 10, 100])
def test_a_message_published_while_another_queue_is_busy_waits_for_few_others(connect, queues, prefetch):
    """Its wakeup is not read then."""
    names = [f"q{number:03}" for number in range(queues)]
    publisher = connect().channel()
    fill(publisher, dict.fromkeys(names, 0) | {names[0]: 400})
    inbox = Inbox(connect().channel(), *names, prefetch=prefetch)
    before = len(receive(inbox, count=50))
    publish(publisher, names[-1], "lone")
    order = receive(inbox, count=300)
    assert order.index(names[-1]) <= queues + 2 * prefetch, before


@pytest.mark.parametrize("prefetch", [1, 10, 0])
def test_two_channels_of_a_connection_are_served_in_turn(connect, prefetch):
    fill(connect().channel(), {"a": 300, "b": 5})
    connection = connect()
    inboxes = [Inbox(connection.channel(), name, prefetch=prefetch) for name in "ab"]
    order = receive(*inboxes, count=305)
    assert [at for at, name in enumerate(order) if name == "b"][-1] < 12, order


@pytest.mark.parametrize("prefetch", [1, 10])
def test_a_message_for_a_second_channel_does_not_wait_for_the_backlog_of_the_first(connect, prefetch):
    publisher = connect().channel()
    fill(publisher, {"a": 400, "b": 0})
    connection = connect()
    inboxes = [Inbox(connection.channel(), name, prefetch=prefetch) for name in "ab"]
    receive(*inboxes, count=50)
    publish(publisher, "b", "lone")
    order = receive(*inboxes, count=351)
    assert order.index("b") <= 5 * prefetch + 1


@pytest.mark.parametrize("arguments", [None, LIMITED, {"x-single-active-consumer": True}], ids=["plain", "limited", "single"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_without_a_prefetch_limit_a_message_for_another_channel_waits_for_one_batch_at_most(connect, channels, arguments):
    publisher = connect().channel()
    fill(publisher, {"a": 500} | dict.fromkeys("bc"[: channels - 1] or "b", 0), arguments)
    connection = connect()
    names = ["ab"] if channels == 1 else ["a", "b", "c"][:channels]
    inboxes = [Inbox(connection.channel(), *as_declared(part, arguments), prefetch=0) for part in names]
    receive(*inboxes, count=110)
    late = names[-1][-1]
    publish(publisher, late, *range(5))
    order = receive(*inboxes, count=395)
    assert [at for at, name in enumerate(order) if name == late][-1] <= BATCH + 2 * 5, order


@pytest.mark.parametrize("strategy", ["sorted", "priority"])
def test_a_strict_order_reaches_every_one_of_many_queues(connect, strategy):
    names = [f"q{number:03}" for number in range(45)]
    fill(connect().channel(), dict.fromkeys(names, 2))
    order = receive(Inbox(connect(queue_order_strategy=strategy).channel(), *names, prefetch=3), count=90)
    assert order == [name for name in names for _ in range(2)]
