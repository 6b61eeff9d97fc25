"""`wait_replicas`: a publish is done when so many replicas have it, on a primary and a replica of this module's own."""

import threading

import kombu
import kombu.pools
import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.publishing.replication import BETWEEN_FULL
from celery_redis_plus.connection.connector import PROCESS_CHECK
from celery_redis_plus.connection.persistent_connection import PersistentConnection
from celery_redis_plus.errors import NoPermission, NotReplicated
from tests.support.inbox import Inbox
from tests.support.process_clock import ProcessClock
from tests.support.servers import replicated_servers
from tests.support.waiting import wait_until

RETRY = {"max_retries": 3, "interval_start": 0, "interval_step": 0}


@pytest.fixture(scope="module")
def pair():
    with replicated_servers() as servers:
        yield servers


@pytest.fixture
def primary(pair):
    PROCESS_CHECK.missing_replicas.clear()
    with pair[0].client() as client:
        client.flushall()
    return pair[0]


@pytest.fixture
def frozen_replica(pair):
    pair[1].freeze()
    yield pair[1]
    pair[1].thaw()


@pytest.fixture
def careful(primary, connect):
    """Connect with one replica to wait for, for a quarter of a second."""

    def open_connection(url=None, **options):
        return connect(url or primary.url(), **{"wait_replicas": 1, "wait_replicas_timeout": 0.25, **options})

    return open_connection


def test_a_publish_returns_when_the_replica_has_it(careful, pair):
    channel = careful(wait_replicas_timeout=20).channel()
    channel.queue_declare("q", durable=True)
    with pair[1].client() as replica:
        for count in range(1, 20):
            kombu.Producer(channel).publish("x", routing_key="q")
            assert replica.zcard("queue:{q}") == count


def test_too_few_replicas_are_an_error_that_says_how_many_and_the_message_is_stored(careful, frozen_replica):
    channel = careful().channel()
    channel.queue_declare("q", durable=True)

    for body in ("a", "b"):
        with pytest.raises(NotReplicated, match="stored, but only 0 of 1 replicas") as caught:
            kombu.Producer(channel).publish(body, routing_key="q", retry=True, retry_policy=RETRY)
        assert (caught.value.confirmed, caught.value.wanted) == (0, 1)

    frozen_replica.thaw()
    kombu.Producer(channel).publish("c", routing_key="q")
    assert sorted(Inbox(channel, "q").drain(3)) == ["a", "b", "c"]
    assert channel.queue_sizes("q").ready == 0


def test_one_replica_is_too_few_where_two_are_wanted(careful):
    channel = careful(wait_replicas=2).channel()
    channel.queue_declare("q", durable=True)

    with pytest.raises(NotReplicated, match="only 1 of 2 replicas") as caught:
        kombu.Producer(channel).publish("x", routing_key="q")

    assert (caught.value.confirmed, caught.value.wanted) == (1, 2)


def test_while_replicas_are_missing_publishers_wait_a_part_of_the_time_and_all_of_it_now_and_then(
    careful, frozen_replica, monkeypatch
):
    stepped = ProcessClock()
    monkeypatch.setattr(clock, "now_s", stepped)
    channel = careful().channel()
    channel.queue_declare("q", durable=True)

    for waited in ("0.25 s", "0.0125 s", "0.0125 s"):
        with pytest.raises(NotReplicated, match=f"after {waited}"):
            kombu.Producer(channel).publish("x", routing_key="q")

    stepped.advance(BETWEEN_FULL * 0.25)
    with pytest.raises(NotReplicated, match=r"after 0\.25 s"):
        kombu.Producer(channel).publish("x", routing_key="q")

    frozen_replica.thaw()
    stepped.advance(BETWEEN_FULL * 0.25)
    kombu.Producer(channel).publish("x", routing_key="q")
    frozen_replica.freeze()
    with pytest.raises(NotReplicated, match=r"after 0\.25 s"):
        kombu.Producer(channel).publish("x", routing_key="q")


def test_replicas_that_are_back_are_waited_for_in_full_again(careful, frozen_replica, monkeypatch):
    monkeypatch.setattr(clock, "now_s", ProcessClock())
    channel = careful().channel()
    channel.queue_declare("q", durable=True)
    producer = kombu.Producer(channel)

    def is_replicated():
        try:
            producer.publish("x", routing_key="q")
        except NotReplicated:
            return False
        return True

    assert not is_replicated()
    frozen_replica.thaw()
    wait_until(is_replicated)
    frozen_replica.freeze()
    with pytest.raises(NotReplicated, match=r"after 0\.25 s"):
        producer.publish("x", routing_key="q")


def test_a_connection_in_place_of_one_with_an_error_knows_that_replicas_are_missing(primary, frozen_replica):
    # Celery's publishers get a new connection after each error: kombu replaces it in its pool.
    options = {"wait_replicas": 1, "wait_replicas_timeout": 0.25}
    with kombu.Connection(primary.url(), transport_options=options) as connection:
        for waited in ("", "0.0125 s"):
            with (
                pytest.raises(NotReplicated, match=f"after {waited}"),
                kombu.pools.producers[connection].acquire(block=True) as producer,
            ):
                producer.publish("x", routing_key="q")
    kombu.pools.reset()


def test_every_queue_of_a_route_gets_the_message_before_the_error(careful, frozen_replica):
    channel = careful().channel()
    exchange = kombu.Exchange("e", "topic", durable=True)
    for name in ("q", "r"):
        kombu.Queue(name, exchange, routing_key="#", durable=True)(channel).declare()

    with pytest.raises(NotReplicated):
        kombu.Producer(channel, exchange).publish("x", routing_key="k")

    assert [channel.queue_sizes(name).ready for name in ("q", "r")] == [1, 1]


def test_a_broadcast_waits_as_well(careful, frozen_replica, primary):
    channel = careful().channel()
    news = kombu.Exchange("news", "fanout")(channel)
    news.declare()

    with pytest.raises(NotReplicated):
        kombu.Producer(channel, news).publish("x")

    with primary.client() as client:
        assert client.xlen("/0.news") == 1


@pytest.mark.parametrize(
    ("exchange", "kind"), [("celery.pidbox", "fanout"), ("celeryev", "fanout"), ("reply.x.pidbox", "direct")]
)
def test_remote_control_and_events_raise_nothing_without_replicas(careful, frozen_replica, exchange, kind):
    channel = careful().channel()
    bound = kombu.Queue("q", kombu.Exchange(exchange, kind), routing_key="k")(channel)
    bound.declare()

    # A worker that is greeted by another one, or sends an event, would end with the error.
    kombu.Producer(channel, bound.exchange).publish("x", routing_key="k")

    if kind == "direct":
        assert Inbox(channel, bound).drain(1) == ["x"]


def test_a_retry_of_kombu_s_asks_the_replicas_again_and_stores_nothing(careful, frozen_replica):
    channel = careful().channel()
    channel.queue_declare("q", durable=True)
    policy = {**RETRY, "retry_errors": (NotReplicated,), "max_retries": 500}
    producer = kombu.Producer(channel)
    threading.Timer(0.6, frozen_replica.thaw).start()
    producer.publish("x", routing_key="q", retry=True, retry_policy=policy)
    assert channel.queue_sizes("q").ready == 1
    # What the same connection publishes afterwards is no duplicate.
    producer.publish("y", routing_key="q")
    assert Inbox(channel, "q").drain(2) == ["x", "y"]


def test_a_connection_lost_while_waiting_leaves_one_message(careful, frozen_replica, primary):
    channel = careful(wait_replicas_timeout=30).channel()
    channel.queue_declare("q", durable=True)
    publisher = threading.Thread(
        target=lambda: kombu.Producer(channel).publish("x", routing_key="q", retry=True, retry_policy=RETRY)
    )
    publisher.start()
    with primary.client() as client:
        waiting = wait_until(
            lambda: [one for one in client.client_list() if one["cmd"] == "wait" and one["name"].startswith("celery-redis-plus")]
        )
        client.client_kill_filter(_id=waiting[0]["id"])
        frozen_replica.thaw()
        publisher.join(30)
        assert client.zcard("queue:{q}") == 1


def test_a_user_who_may_not_wait_is_told_and_the_message_is_there_once(careful, primary):
    with primary.client() as client:
        client.execute_command("ACL", "SETUSER", "impatient", "on", ">pw", "~*", "&*", "+@all", "-wait")
    channel = careful(primary.url().replace("//", "//impatient:pw@")).channel()
    channel.queue_declare("q", durable=True)

    with pytest.raises((NoPermission, kombu.exceptions.OperationalError), match="wait"):
        kombu.Producer(channel).publish("x", routing_key="q", retry=True, retry_policy=RETRY)

    assert channel.queue_sizes("q").ready == 1


def test_waiting_is_part_of_the_publish_s_own_round_trip(careful, monkeypatch):
    channel = careful(wait_replicas_timeout=20).channel()
    channel.queue_declare("q", durable=True)
    producer = kombu.Producer(channel)
    producer.publish("x", routing_key="q")
    sent = []
    connection = channel.session.commands.connection
    send = connection.send_packed_command
    monkeypatch.setattr(connection, "send_packed_command", lambda *args, **kw: (sent.append(args), send(*args, **kw)))

    producer.publish("y", routing_key="q")

    assert len(sent) == 1


def test_nobody_waits_without_the_option(connect, primary):
    channel = connect(primary.url()).channel()
    channel.queue_declare("q", durable=True)
    with primary.client() as client:
        client.config_resetstat()
        kombu.Producer(channel).publish("x", routing_key="q")
        assert "cmdstat_wait" not in client.info("commandstats")


def test_scripts_that_the_server_forgot_are_sent_again(careful, primary):
    channel = careful(wait_replicas_timeout=20).channel()
    channel.queue_declare("q", durable=True)
    with primary.client() as client:
        for body in range(3):
            kombu.Producer(channel).publish(body, routing_key="q")
            client.script_flush()
    assert Inbox(channel, "q").drain(3) == [0, 1, 2]


def test_a_script_that_is_sent_again_is_not_confirmed_by_what_replicas_had_before(careful, pair, primary):
    channel = careful().channel()
    channel.queue_declare("q", durable=True)
    kombu.Producer(channel).publish("x", routing_key="q", retry=True, retry_policy={**RETRY, "retry_errors": (NotReplicated,)})
    with primary.client() as client:
        client.script_flush()
    pair[1].freeze()
    try:
        with pytest.raises(NotReplicated, match="only 0 of 1 replicas"):
            kombu.Producer(channel).publish("y", routing_key="q")
    finally:
        pair[1].thaw()
    assert Inbox(channel, "q").drain(2) == ["x", "y"]


def test_reading_leaves_time_for_the_replicas(careful):
    connection = careful(socket_timeout=2, wait_replicas_timeout=3)
    assert connection.connection.session.commands.timeout == 5
    assert isinstance(connection.connection.session.commands, PersistentConnection)
