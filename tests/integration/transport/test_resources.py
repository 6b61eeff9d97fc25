"""Connections, keys, threads and descriptors: a known number while in use, none afterwards; forks share nothing."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import kombu

from tests.support.inbox import Inbox, declare, publish
from tests.support.program import run_script
from tests.support.services import end_services
from tests.support.waiting import wait_until


def names(redis_client):
    ours = "celery-redis-plus:"
    return Counter(client["name"].removeprefix(ours) for client in redis_client.client_list() if client["name"].startswith(ours))


def test_a_publisher_has_one_connection(connect, redis_client):
    connection = connect()
    for number in range(5):
        channel = connection.channel()
        publish(channel, f"q{number}", "x")
    kombu.Producer(connection, kombu.Exchange("e", "fanout")).publish("x")
    assert names(redis_client) == {"commands": 1}


def test_a_consumer_has_two_connections_and_its_process_two_for_maintenance(connect, redis_client):
    first = Inbox(connect().channel(), "q", "r")
    first.rest(0.05)
    expected = {"commands": 1, "wakeups": 1, "maintenance": 1, "timers": 1}
    wait_until(lambda: names(redis_client) == expected, message=lambda: names(redis_client))
    second = Inbox(connect().channel(), "q", kombu.Queue("f", kombu.Exchange("e", "fanout")))
    second.rest(0.05)
    expected = {"commands": 2, "wakeups": 2, "streams": 1, "maintenance": 1, "timers": 1}
    wait_until(lambda: names(redis_client) == expected, message=lambda: names(redis_client))


def test_closing_leaves_no_connection_but_maintenance_which_ends_too(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), "q", kombu.Queue("f", kombu.Exchange("e", "fanout"), auto_delete=True))
    inbox.rest(0.05)
    connection.close()
    wait_until(lambda: set(names(redis_client)) <= {"maintenance", "timers"}, message=lambda: names(redis_client))
    end_services()
    wait_until(lambda: not names(redis_client))


def test_closing_an_idle_consumer_leaves_no_key(connect, redis_client):
    connection = connect()
    inbox = Inbox(connection.channel(), "q")
    publish(inbox.channel, "q", "x")
    inbox.drain(1)
    inbox.rest(0.05)
    connection.close()
    end_services()
    keys = set(redis_client.keys("*"))
    assert not [
        key for key in keys if key.startswith((b"client_wakeup:", b"consumer", b"wakeup:", b"schedule_wakeup:", b"message:"))
    ]
    assert {key for key in keys if redis_client.pttl(key) == -1} == {b"queues", b"queue_ids", b"database_id", b"meta:{q}"}


def test_an_unused_connection_writes_nothing(connect, redis_client):
    connection = connect()
    connection.default_channel.queue_declare  # noqa: B018 - an open channel, no more
    connection.close()
    assert redis_client.keys("*") == []


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def after_ending_maintenance():
    end_services()
    return descriptors(), threading.active_count()


def test_opening_and_closing_again_and_again_leaves_no_descriptor_and_no_thread(broker_url):
    def once():
        connection = kombu.Connection(broker_url)
        inbox = Inbox(connection.channel(), "q", kombu.Queue("f", kombu.Exchange("e", "fanout"), auto_delete=True))
        publish(inbox.channel, "q", "x")
        inbox.drain(1)
        connection.release()

    once()
    before = after_ending_maintenance()
    for _ in range(20):
        once()
    assert after_ending_maintenance() <= before


def test_abandoned_connections_leave_no_descriptor_and_no_thread(redis_client, broker_url):
    def once():
        connection = kombu.Connection(broker_url)
        inbox = Inbox(connection.channel(), "q")
        inbox.rest(0.02)
        redis_client.client_kill_filter(_type="normal", skipme=True)
        with suppress(*connection.connection_errors):
            inbox.rest(1)
        connection.collect()
        connection.release()

    once()
    before = after_ending_maintenance()
    for _ in range(10):
        once()
    assert after_ending_maintenance() <= before


def test_a_forked_child_publishes_on_the_inherited_connection_while_the_parent_goes_on(broker_url):
    """As a web server does that forks its workers after the application was loaded."""
    received = run_script(
        """
        import json, os, sys, kombu, celery_redis_plus

        connection = kombu.Connection(sys.argv[1])
        producer = kombu.Producer(connection)
        producer.publish("before", routing_key="q", retry=True)
        children = []
        for child in range(3):
            pid = os.fork()
            if not pid:
                for number in range(100):
                    producer.publish(f"child {child} {number}", routing_key="q", retry=True)
                connection.release()
                os._exit(0)
            children.append(pid)
        for number in range(100):
            producer.publish(f"parent {number}", routing_key="q", retry=True)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
        producer.publish("after", routing_key="q", retry=True)
        queue = connection.SimpleQueue("q")
        bodies = []
        while len(queue):
            message = queue.get_nowait()
            bodies.append(message.payload)
            message.ack()
        print(json.dumps(bodies))
        connection.release()
        """,
        broker_url,
    )
    assert received[0] == "before"
    assert received[-1] == "after"
    expected = {f"parent {number}" for number in range(100)} | {f"child {c} {number}" for c in range(3) for number in range(100)}
    assert set(received[1:-1]) == expected
    assert len(received) == len(expected) + 2


def test_a_forked_child_keeps_none_of_its_parents_descriptors(broker_url):
    """Or the server keeps a killed parent's consumers for as long as a child of its pool lives."""
    shared = run_script(
        """
        import json, os, sys, kombu, celery_redis_plus
        from pathlib import Path

        def descriptors():
            found = {}
            for path in Path("/proc/self/fd").iterdir():
                try:
                    found[path.name] = str(path.readlink())
                except OSError:
                    pass
            return {name: target for name, target in found.items() if target.startswith(("socket:", "pipe:"))}

        before = set(descriptors().values())
        connection = kombu.Connection(sys.argv[1])
        consumer = kombu.Consumer(connection.channel(), [kombu.Queue("q", durable=True)], on_message=print)
        consumer.consume()
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            pass
        own = set(descriptors().values()) - before
        assert len(own) >= 6, own
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            left = sorted(own & set(descriptors().values()))
            os.write(writer, json.dumps(left).encode())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(os.read(reader, 10_000).decode())
        connection.release()
        """,
        broker_url,
    )
    assert shared == []


def test_a_fork_of_a_consuming_process_disturbs_neither(broker_url):
    """The child has no maintenance thread, and must neither settle nor hand back what the parent holds."""
    result = run_script(
        """
        import json, os, sys, kombu, celery_redis_plus

        connection = kombu.Connection(sys.argv[1], transport_options={"visibility_timeout": 3})
        channel = connection.channel()
        bodies, held = [], []

        def take(message):
            bodies.append(message.payload)
            held.append(message)

        consumer = kombu.Consumer(channel, [kombu.Queue("q", durable=True)], on_message=take)
        consumer.qos(prefetch_count=2)
        consumer.consume()
        producer = kombu.Producer(connection.channel())
        for number in range(4):
            producer.publish(number, routing_key="q")
        connection.drain_events(timeout=5)
        pid = os.fork()
        if not pid:
            other = connection.clone()
            other.default_channel.basic_get("q", no_ack=True)
            other.release()
            connection.release()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        unacked = channel.queue_sizes("q").unacked
        while len(bodies) < 3:
            for message in held:
                message.ack()
            held.clear()
            connection.drain_events(timeout=5)
        for message in held:
            message.ack()
        connection.release()
        print(json.dumps([unacked, bodies]))
        """,
        broker_url,
    )
    # 0 and 1 belong to the parent; the child took 2.
    assert result == [2, [0, 1, 3]]


def test_a_process_that_exits_without_closing_ends_at_once_and_quietly(broker_url):
    assert run_script(
        """
        import sys, kombu, celery_redis_plus
        connection = kombu.Connection(sys.argv[1])
        channel = connection.channel()
        consumer = kombu.Consumer(channel, [kombu.Queue("q", durable=True)], on_message=print)
        consumer.consume()
        kombu.Producer(channel).publish("x", routing_key="other")
        print(1)
        """,
        broker_url,
    ) == 1  # fmt: skip


def test_prefetched_messages_of_a_process_that_exits_without_closing_are_recovered(connect, broker_url):
    channel = connect(visibility_timeout=3).channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    run_script(
        """
        import sys, kombu, celery_redis_plus
        connection = kombu.Connection(sys.argv[1], transport_options={"visibility_timeout": 3})
        connection.channel().basic_get("q")
        print(1)
        """,
        broker_url,
    )
    assert Inbox(channel, "q").drain(1, timeout_s=10) == ["x"]
