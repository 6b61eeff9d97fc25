"""What the server lost (FLUSHDB, eviction) is declared again by those who know it; what was deleted stays deleted."""

from contextlib import suppress

import kombu
import pytest

from celery_redis_plus import clock
from celery_redis_plus.maintenance import topology_recovery
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

TOPIC = kombu.Exchange("e", "topic", durable=True)
ARGUMENTS = {"x-max-priority": 5}


def work(name="q", key="k.#"):
    return kombu.Queue(name, TOPIC, routing_key=key, durable=True, queue_arguments=ARGUMENTS)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(topology_recovery, "LOOK_S", 0.1)


@pytest.fixture
def consumer(connect):
    """A consumer of a queue on a topic exchange."""
    return Inbox(connect(polling_interval=0.2).channel(), work())


def restored(client, queue="q", exchange="e"):
    wait_until(lambda: client.hexists(f"meta:{{{queue}}}", "id") and client.hlen(f"binding:{{{exchange}}}") > 1)


def test_after_a_flush_a_publisher_without_declarations_reaches_the_consumer(connect, consumer, redis_client):
    redis_client.flushdb()
    restored(redis_client)
    producer = kombu.Producer(connect().channel(), kombu.Exchange("e", "topic", durable=True, no_declare=True))
    producer.publish("a", routing_key="k.x", priority=9)
    publish(connect().channel(), "q", "b")
    assert sorted(consumer.drain(2)) == ["a", "b"]
    assert b"x-max-priority" in redis_client.hget("meta:{q}", "arguments")
    assert redis_client.hget("exchanges", "e")
    assert redis_client.zscore("queues", "q") == float("inf")


def test_a_flush_under_several_consumers_loses_nobody_s_binding(connect, consumer, redis_client):
    other = Inbox(connect(polling_interval=0.2).channel(), work("r", "other"))
    redis_client.flushdb()
    wait_until(lambda: redis_client.hlen("binding:{e}") == 3)
    producer = kombu.Producer(connect().channel(), TOPIC)
    producer.publish("a", routing_key="k.x")
    producer.publish("b", routing_key="other")
    assert (consumer.drain(1), other.drain(1)) == (["a"], ["b"])


def test_a_queue_that_is_soon_declared_again_keeps_its_consumers_however_often_it_is_looked_for(connect, consumer, monkeypatch):
    monkeypatch.setattr(topology_recovery, "MISSING_RECHECK_S", 3600)
    service = consumer.channel.session.service
    recovery = service.tasks.topology_recovery
    admin = connect().channel()
    admin.queue_delete("q")
    wait_until(lambda: "q" in recovery._suspects)  # noqa: SLF001
    for _ in range(3):
        recovery.run_soon()
        service.wake()
        wait_until(lambda: recovery.next_run_at > 0)
    work()(admin).declare()
    publish(admin, "q", "a")
    assert consumer.drain(1) == ["a"]


@pytest.mark.parametrize("lost", ["meta:{q}", "binding:{e}", "exchanges"])
def test_one_evicted_record_is_declared_again(connect, consumer, redis_client, lost):
    redis_client.delete(lost)
    if lost == "exchanges":
        # The exchange's type is asked for when its bindings are.
        redis_client.delete("binding:{e}")
    restored(redis_client)
    kombu.Producer(connect().channel(), TOPIC).publish("a", routing_key="k.x")
    assert consumer.drain(1) == ["a"]


def test_a_publisher_restores_what_it_has_declared_itself(connect, redis_client):
    publisher = connect().channel()
    producer = kombu.Producer(publisher, TOPIC)
    producer.publish("a", routing_key="k.x", declare=[work()])
    redis_client.flushdb()
    for number in range(3):
        producer.publish(number, routing_key="k.x")
    assert publisher.queue_sizes("q").ready == 3
    assert b"x-max-priority" in redis_client.hget("meta:{q}", "arguments")


def test_a_publisher_restores_the_bindings_that_it_knows_from_others(connect, redis_client):
    publisher = connect(client_name="other").channel()
    work()(connect().channel()).declare()
    # As in a process of its own: it has declared nothing.
    publisher.session.bindings._topology = type(publisher.session.bindings._topology)()  # noqa: SLF001
    producer = kombu.Producer(publisher, kombu.Exchange("e", "topic", no_declare=True))
    producer.publish("a", routing_key="k.x")
    redis_client.flushdb()
    for number in range(3):
        producer.publish(number, routing_key="k.x")
    assert publisher.queue_sizes("q").ready == 3


def test_a_transient_queue_in_use_comes_back_as_a_transient_one(connect, redis_client):
    queue = kombu.Queue("reply", TOPIC, routing_key="r", auto_delete=True, expires=60)
    inbox = Inbox(connect(polling_interval=0.2).channel(), queue)
    redis_client.flushdb()
    restored(redis_client, "reply")
    assert 0 < redis_client.pttl("meta:{reply}") <= 110_000
    publish(connect().channel(), "reply", "x")
    assert inbox.drain(1) == ["x"]


def test_broadcasts_reach_a_subscriber_after_a_flush(connect, redis_client):
    news = kombu.Exchange("news", "fanout")
    inbox = Inbox(connect(polling_interval=0.2).channel(), kombu.Queue("n", news, auto_delete=True))
    producer = kombu.Producer(connect().channel(), news)
    producer.publish("before")
    inbox.drain(1)
    redis_client.flushdb()
    producer.publish("after")
    assert inbox.drain(2) == ["before", "after"]


def test_a_queue_that_was_deleted_is_not_brought_back_by_its_consumer(connect, consumer, redis_client):
    admin = connect().channel()
    publish(admin, "q", "a")
    consumer.drain(1)
    admin.queue_delete("q")
    kept = Inbox(connect(polling_interval=0.2).channel(), work("kept", "kept"))
    redis_client.delete("meta:{kept}")
    # The maintenance task that looks for the one looks for the other as well.
    restored(redis_client, "kept")
    assert not redis_client.exists("meta:{q}")
    assert [queue for queue, _, _ in admin.list_bindings()] == ["kept"]
    kept.cancel()


def test_bindings_that_were_removed_are_not_brought_back(connect, consumer, redis_client):
    admin, publisher = connect().channel(), connect().channel()
    producer = kombu.Producer(publisher, TOPIC)
    producer.publish("a", routing_key="k.x")
    consumer.drain(1)
    admin.session.bindings._topology = type(admin.session.bindings._topology)()  # noqa: SLF001 - another process
    admin.queue_unbind("q", "e", "k.#")
    # Those who made the binding know nothing of it; the version that is left on the server tells them.
    for body in ("cached", "dropped"):
        producer.publish(body, routing_key="k.x")
    redis_client.delete("meta:{q}")
    wait_until(lambda: redis_client.hexists("meta:{q}", "id"))
    assert redis_client.hkeys("binding:{e}") == [b"version"]


def test_a_binding_comes_back_with_its_queue_though_nobody_consumes_it_here(connect, consumer, redis_client):
    """Else it would lead nowhere until somebody publishes, and `check --repair` would remove it."""
    other = kombu.Queue("other", TOPIC, routing_key="other", durable=True, queue_arguments=ARGUMENTS)
    other(connect().channel()).declare()
    redis_client.flushdb()
    restored(redis_client, "other")
    assert b"x-max-priority" in redis_client.hget("meta:{other}", "arguments")


def test_the_binding_of_a_transient_queue_that_has_left_does_not_come_back(connect, consumer, redis_client):
    kombu.Queue("reply", TOPIC, routing_key="r", auto_delete=True)(connect().channel()).declare()
    redis_client.flushdb()
    restored(redis_client)
    assert [field for field in redis_client.hkeys("binding:{e}") if b"reply" in field] == []
    assert not redis_client.exists("meta:{reply}")


def test_a_queue_that_is_deleted_soon_after_a_flush_stays_deleted_and_its_consumer_is_told(connect, monkeypatch, redis_client):
    monkeypatch.setattr(topology_recovery, "LOOK_S", 60)
    connection = connect()
    channel = connection.channel()
    Inbox(channel, "old").cancel()
    service = channel.session.service
    recovery = service.tasks.topology_recovery
    redis_client.flushdb()
    channel.queue_declare("new", durable=True)
    # A look from before the flush knows nothing of it.
    recovery.run_soon()
    service.wake()
    wait_until(lambda: recovery.next_run_at > clock.now_s() and recovery._flushes == service.topology.flushes == 1)  # noqa: SLF001
    told = []
    channel.basic_consume("new", callback=lambda _: None, consumer_tag="tag", on_cancel=told.append)
    connect().channel().queue_delete("new")
    recovery.run_soon()
    service.wake()

    def is_told():
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        return told == ["tag"]

    wait_until(is_told, interval_s=0)
    assert not redis_client.exists("meta:{new}")


def test_an_eviction_policy_that_can_take_our_keys_is_named_at_the_start(connect, start_server, caplog):
    server = start_server({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    connect(server.url())
    (record,) = [record for record in caplog.records if "maxmemory-policy" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "IT WILL DELETE WAITING MESSAGES" in record.getMessage()
