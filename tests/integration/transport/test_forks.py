"""A process that forks while it consumes, or while another of its threads holds a lock."""

from __future__ import annotations

from tests.support.program import run_script

CONSUMES = """
    import json, os, sys, kombu, celery_redis_plus

    connection = kombu.Connection(sys.argv[1])
    channel = connection.channel()
    got, unsettled = [], []

    def take(message):
        got.append(message.payload)
        message.ack() if message.payload != "kept" else unsettled.append(message)

    consumer = kombu.Consumer(channel, [kombu.Queue("q", durable=True)], on_message=take)
    consumer.qos(prefetch_count=5)
    consumer.consume()
    for body in ("kept", "buffered"):
        kombu.Producer(connection.channel()).publish(body, routing_key="q")
    connection.drain_events(timeout=5)
    try:
        connection.drain_events(timeout=0.2) if channel.queue_sizes("q").unacked < 2 else None
    except TimeoutError:
        pass
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            {child}
        except BaseException as error:
            os.write(writer, json.dumps(repr(error)).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    said = json.loads(os.read(reader, 10_000).decode())
    unacked = channel.queue_sizes("q").unacked
    unsettled.pop().ack()
    kombu.Producer(connection.channel()).publish("last", routing_key="q")
    while "last" not in got:
        connection.drain_events(timeout=5)
    connection.release()
    print(json.dumps([said, unacked, got]))
"""


def forked(broker_url, child):
    indented = "\n            ".join(line.strip("\n") for line in child)
    return run_script(CONSUMES.replace("{child}", indented), broker_url)


def test_a_child_that_goes_on_consuming_hears_a_connection_error_and_leaves_the_parents_messages(broker_url):
    said, unacked, got = forked(
        broker_url,
        [
            "try:",
            "    connection.drain_events(timeout=5)",
            "except connection.connection_errors as error:",
            "    os.write(writer, json.dumps(type(error).__name__).encode())",
        ],
    )
    assert said == "ServerUnreachable"
    assert unacked >= 1
    assert got == ["kept", "buffered", "last"]


def test_kombu_gives_such_a_child_a_connection_of_its_own(broker_url):
    said, _, got = forked(
        broker_url,
        [
            "mine = []",
            "def work():",
            "    connection.drain_events(timeout=5)",
            "def revive(channel):",
            "    fresh = kombu.Consumer(channel, [kombu.Queue('childs', durable=True)])",
            "    fresh.on_message = lambda message: (mine.append(message.payload), message.ack())",
            "    fresh.consume()",
            "    kombu.Producer(channel).publish('to the child', routing_key='childs')",
            "connection.ensure(connection, work, max_retries=3, on_revive=revive)()",
            "os.write(writer, json.dumps(mine).encode())",
            "connection.release()",
        ],
    )
    assert said == ["to the child"]
    assert got == ["kept", "buffered", "last"]


def test_a_child_that_closes_what_it_inherited_takes_nothing_from_the_parent(broker_url):
    said, unacked, got = forked(
        broker_url, ["channel.close()", "connection.release()", "os.write(writer, json.dumps('closed').encode())"]
    )
    assert said == "closed"
    assert unacked >= 1
    assert got == ["kept", "buffered", "last"]


def test_a_child_gets_no_message_in_its_parents_name(broker_url):
    said, _, got = forked(
        broker_url,
        [
            "try:",
            "    connection.channel().basic_get('q')",
            "except connection.connection_errors as error:",
            "    os.write(writer, json.dumps(type(error).__name__).encode())",
            "else:",
            "    os.write(writer, json.dumps('new connection').encode())",
        ],
    )
    assert said in {"ServerUnreachable", "new connection"}
    assert got == ["kept", "buffered", "last"]


def test_a_child_can_wait_for_a_delivery_of_its_parent_and_leaves_its_callbacks_to_it(broker_url):
    said = run_script(
        """
        import json, os, signal, sys, kombu, celery_redis_plus

        connection = kombu.Connection(sys.argv[1])
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        delivery = celery_redis_plus.publish("x", routing_key="q", connection=connection, track=True)
        called = []
        delivery.on_complete(lambda _: called.append(os.getpid()))
        assert not delivery.wait(0.1)
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            # Before the ack and behind it.
            early = delivery.wait(0.1)
            os.write(writer, b"ready")
            said = [early, delivery.wait(5), delivery.complete, called]
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
        os.read(reader, 5)
        channel.basic_get("q").ack()
        assert delivery.wait(5)
        assert os.waitpid(pid, 0)[1] == 0
        print(json.dumps([json.loads(os.read(reader, 1000)), called == [os.getpid()]]))
        connection.release()
        """,
        broker_url,
    )
    assert said == [[False, True, True, []], True]


def test_a_child_settles_what_its_parent_was_given(broker_url):
    """A program that forks for each message, which works and acks: the parent's later ack changes nothing."""
    said, unacked, got = forked(
        broker_url,
        [
            "before = channel.queue_sizes('q').unacked",
            "unsettled[0].ack()",
            "os.write(writer, json.dumps([before, channel.queue_sizes('q').unacked]).encode())",
        ],
    )
    assert said[1] == said[0] - 1 == unacked
    assert got == ["kept", "buffered", "last"]
