"""Connections to a Redis Cluster: the owner of the broker's slot is found, and found again; what stops that is named."""

import threading

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import (
    AuthenticationFailed,
    ClusterRedirected,
    InvalidAddress,
    InvalidArgument,
    MasterNotFound,
    ReadOnlyReplica,
    ServerUnreachable,
    SlotUnavailable,
)
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import Script
from tests.support.clusters import RunningCluster
from tests.support.connections import opened_connections
from tests.support.machine_time import machine_time
from tests.support.ports import free_port
from tests.support.waiting import wait_until

WAITING = ("BZMPOP", 30, 1, b"{celery-redis-plus}nothing", "MIN")


@pytest.fixture
def open_connection():
    with opened_connections() as opened:
        yield opened


def test_a_connection_leads_to_the_owner_of_the_slot(cluster, open_connection):
    connection = open_connection(cluster.url())
    assert connection.peer == ("127.0.0.1", cluster.owner.port)
    assert connection.command("SET", "{celery-redis-plus}x", "1") == b"OK"


def test_each_prefix_has_the_node_of_its_own_slot(cluster, open_connection):
    owners = set()
    for number in range(3):
        shop = RunningCluster(cluster.nodes, prefix=f"shop{number}:")
        connection = open_connection(cluster.url(), global_keyprefix=f"shop{number}:")
        assert connection.connector.options.global_keyprefix == f"{{shop{number}:}}"
        assert connection.peer == ("127.0.0.1", shop.owner.port)
        owners.add(shop.owner.port)
    assert len(owners) > 1


def test_one_node_that_runs_is_enough(cluster, open_connection):
    url = f"redisplus+cluster://127.0.0.1:{free_port()};127.0.0.1:{cluster.nodes[5].port}/0"
    assert open_connection(url).peer == ("127.0.0.1", cluster.owner.port)


def test_each_user_asks_the_nodes_with_its_own_password(cluster, open_connection):
    clients = [node.client() for node in cluster.nodes if node.running]
    for client in clients:
        client.acl_setuser("shop", enabled=True, passwords=["+right"], keys=["*"], commands=["+@all"])
    try:
        began = machine_time()
        with pytest.raises(AuthenticationFailed):
            open_connection(cluster.url().replace("://", "://shop:wrong@"))
        assert machine_time() - began < 2
        right = open_connection(cluster.url().replace("://", "://shop:right@"))
        assert right.command("ACL", "WHOAMI") == b"shop"
    finally:
        for client in clients:
            client.acl_deluser("shop")
            client.close()


def test_a_server_that_is_no_node_is_named_at_once(server, open_connection):
    began = machine_time()
    with pytest.raises(MasterNotFound, match=r"no node names the owner of slot \d+ .*it is no node of a cluster"):
        open_connection(server.url(scheme="redisplus+cluster"))
    assert machine_time() - began < 2


def test_a_database_other_than_0_is_refused():
    with pytest.raises(InvalidAddress, match="database 3 is not allowed in the URL of a Redis Cluster; allowed: 0"):
        Address.from_url("redisplus+cluster://127.0.0.1:6379/3")


def test_a_command_and_a_waiting_call_leave_the_node_that_lost_the_slot(cluster, open_connection):
    connection = open_connection(cluster.url())
    waiting = open_connection(cluster.url(), BlockingConnection)
    waiting.start(*WAITING)
    cluster.migrate_key_by_key()
    with pytest.raises((SlotUnavailable, ServerUnreachable)):
        connection.command("GET", "{celery-redis-plus}x")
    assert not connection.connected
    with pytest.raises((SlotUnavailable, ServerUnreachable)):
        waiting.finish()
    assert connection.command("GET", "{celery-redis-plus}x") is None
    assert connection.peer == ("127.0.0.1", cluster.owner.port)


def test_a_failover_moves_connections_to_the_new_owner(cluster, open_connection):
    cluster.wait_until_whole()
    connection = open_connection(cluster.url())
    waiting = open_connection(cluster.url(), BlockingConnection)
    waiting.start(*WAITING)
    promoted = cluster.failover()
    # The old owner holds writes back until it has heard of the new one; it still answers reads.
    with pytest.raises((SlotUnavailable, ServerUnreachable)):
        connection.command("DEL", "{celery-redis-plus}x")
    with pytest.raises((SlotUnavailable, ReadOnlyReplica)):
        waiting.finish()
    connection.connect()
    assert connection.peer == ("127.0.0.1", promoted.port)


def test_a_key_that_is_absent_while_its_slot_migrates_is_no_answer(cluster, open_connection):
    connection = open_connection(cluster.url(), socket_connect_timeout=0.3)
    other = open_connection(cluster.url(), socket_connect_timeout=0.3)
    connection.command("SET", "{celery-redis-plus}stays", "1")
    with cluster.halfway():
        assert connection.command("GET", "{celery-redis-plus}stays") == b"1"
        with pytest.raises(SlotUnavailable, match="ASK"):
            connection.command("EXISTS", "{celery-redis-plus}gone")
        with pytest.raises(SlotUnavailable, match="Multiple keys request during rehashing"):
            other.command("EXISTS", "{celery-redis-plus}gone", "{celery-redis-plus}stays")
        # No loop of connections that fail at their first command.
        with pytest.raises(MasterNotFound, match="ASK"):
            connection.connect()
    assert connection.command("EXISTS", "{celery-redis-plus}gone") == 0


def test_a_connection_waits_for_the_end_of_a_migration(cluster):
    connector = Connector(Address.from_url(cluster.url()), Options())
    opened = []
    opening = threading.Thread(target=lambda: opened.append(connector.open("tested", timeout=5.0)))
    with cluster.halfway():
        opening.start()
        opening.join(0.3)
        assert opening.is_alive()
    opening.join(10)
    opened[0].disconnect()


def test_nodes_that_the_url_does_not_name_are_asked_as_well(cluster, open_connection):
    cluster.wait_until_whole()
    owner = cluster.owner
    connection = open_connection(f"redisplus+cluster://127.0.0.1:{owner.port}/0")
    promoted = cluster.crash()
    wait_until(lambda: _peer(connection) == promoted.port, 10)


def test_a_plain_url_names_the_form_for_a_cluster(cluster, open_connection):
    port = cluster.nodes[0].port
    with pytest.raises(ClusterRedirected, match=rf"write redisplus\+cluster://127\.0\.0\.1:{port}/0 in broker_url"):
        open_connection(f"redisplus://127.0.0.1:{port}/0")


def _peer(connection):
    try:
        connection.connect()
    except ServerUnreachable:
        return None
    return connection.peer[1]


def test_all_keys_of_an_app_with_every_feature_are_in_one_slot(cluster):
    options = {"event_log": True, "event_log_index": True, "global_keyprefix": ""}
    with kombu.Connection(cluster.url(), transport_options=options) as connection:
        channel = connection.channel()
        fanout, topic = kombu.Exchange("news", "fanout"), kombu.Exchange("topics", "topic")
        arguments = {"x-max-length": 5, "x-message-ttl": 60_000, "x-dead-letter-exchange": "topics", "x-max-priority": 9}
        limited = kombu.Queue("limited", topic, "a.#", queue_arguments=arguments)
        heard = kombu.Queue("heard", fanout, exclusive=True)
        got = []
        producer = connection.Producer(channel)
        with connection.Consumer([limited, heard], callbacks=[lambda body, message: got.append(message)], channel=channel):
            producer.publish(1, exchange=fanout, declare=[fanout])
            for number in range(3):
                producer.publish(number, exchange=topic, routing_key="a.b", declare=[limited], priority=number, delay=0)
            producer.publish(4, exchange=topic, routing_key="a.b", headers={"x-delay": 60_000})
            producer.publish(5, exchange=topic, routing_key="a.b", headers={"x-deduplication-id": "once"})
            producer.publish(6, exchange=topic, routing_key="a.b", headers={"x-retries": 1}, body_encoding="base64")
            wait_until(lambda: len(got) > 4 or connection.drain_events(timeout=1), 10)
            got[-1].reject()
            got[0].ack()
            keys = _keys_by_node(cluster)
    owner = cluster.owner.port
    kinds = {key.partition(b"}")[2].partition(b":")[0] for key in keys[owner]}
    assert {b"message", b"meta", b"events", b"binding", b"exchanges", b"dedup", b"subscribers", b"fanout", b"producer"} <= kinds
    assert all(key.startswith(b"{celery-redis-plus}") for key in keys[owner])
    assert all(not found for port, found in keys.items() if port != owner)


def _keys_by_node(cluster):
    """Return the keys of each primary, by its port."""
    primaries = [node for node in cluster.nodes if node.running and "master" in node.myself().flags]
    return {node.port: node.ask("KEYS", "*") for node in primaries}


def test_a_script_that_ended_at_a_key_of_another_node_counts_as_without_a_reply(cluster, open_connection):
    connection = open_connection(cluster.url())
    connection.command("SET", "{celery-redis-plus}here", "1")
    reads = Script.of("reads", "redis.call('SET', KEYS[1], '2') return redis.call('GET', ARGV[1])")
    with cluster.halfway():
        with pytest.raises(SlotUnavailable, match="non local key"):
            connection.call(reads, [b"{celery-redis-plus}here"], "{celery-redis-plus}gone")
        assert connection.outcome_unknown
        assert not connection.connected
    assert connection.command("GET", "{celery-redis-plus}here") == b"2"


def test_the_command_line_works_on_a_cluster(cluster, capsys):
    with kombu.Connection(cluster.url()) as connection:
        connection.SimpleQueue("orders").put({"id": 1})
    assert main(["queues", "--broker", cluster.url()]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["orders", "1"]
    assert main(["check", "--broker", cluster.url()]) == 0
    assert "1 message(s): no violation" in capsys.readouterr().out
    # Its nodes keep nothing on disk.
    assert main(["doctor", "--broker", cluster.url()]) == 1
    assert "nothing is written to disk" in capsys.readouterr().out


def test_messages_of_kombu_come_from_elsewhere_only(cluster):
    with BrokerAdmin(cluster.url()) as admin, pytest.raises(InvalidArgument, match="--from URL, with --from-prefix"):
        admin.migration({})
