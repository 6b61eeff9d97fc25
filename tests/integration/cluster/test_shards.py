"""Shards on a cluster: the broker's queues on all of its primaries."""

from __future__ import annotations

import time

import kombu
import pytest

from celery_redis_plus.admin.shard_admin import raise_of_url
from celery_redis_plus.broker.queues.queues import Sizes
from celery_redis_plus.connection.cluster_address import slot_of
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from celery_redis_plus.errors import ShardUnreachable
from celery_redis_plus.maintenance.runner import TaskRunner
from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran, check, more
from tests.integration.shards.conftest import SHARDS, named
from tests.support.inbox import Inbox, declare, publish
from tests.support.tls import make_certificates
from tests.support.topologies import tls_cluster, tls_url
from tests.support.waiting import wait_until

QUEUES = [named(shard) for shard in range(SHARDS)]
OPTIONS = {"shards": SHARDS, "visibility_timeout": 60}


def primaries(cluster):
    return [node for node in cluster.nodes if node.running and "master" in node.myself().flags]


def test_each_shard_has_one_slot_and_no_call_touches_two(cluster):
    """The cluster itself refuses a call over two slots (CROSSSLOT), and keys that a script did not declare of another node."""
    connection = kombu.Connection(cluster.url(), transport_options=OPTIONS)
    channel = connection.channel()
    topic, news = kombu.Exchange("topic", "topic"), kombu.Exchange("news", "fanout")
    arguments = {"x-dead-letter-exchange": "topic", "x-dead-letter-routing-key": "dead"}
    for queue in QUEUES:
        kombu.Queue(queue, topic, "a.#", queue_arguments=arguments)(channel).declare()
    graves = kombu.Queue(named(2, "graves"), topic, "dead")
    graves(channel).declare()
    heard = kombu.Queue(named(1, "heard"), news, exclusive=True)
    inbox = Inbox(channel, *[kombu.Queue(queue, no_declare=True) for queue in QUEUES], heard, ack=False)
    producer = kombu.Producer(channel)
    producer.publish("news", exchange=news, declare=[news])
    producer.publish("all", exchange=topic, routing_key="a.b")
    for queue in QUEUES:
        publish(channel, queue, "one", headers={"x-delay": 300})
    inbox.drain(7)
    for message in inbox.messages:
        message.reject()
    wait_until(lambda: channel.queue_sizes(graves.name).ready == 6, 30)
    slots = {slot_of(key.decode()) for node in primaries(cluster) for key in node.ask("KEYS", "*")}
    assert slots == {slot_of(prefix) for prefix in (cluster.prefix, *shard_prefixes("", SHARDS)[1:])}
    connection.release()


@pytest.fixture
def worker(cluster, server, broker_url, start_worker):
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    return start_worker("tests.integration.sentinel.app", pool="threads", concurrency=4, env=env, queues=[*QUEUES, "celery"])


def test_celery_works_over_all_primaries(cluster, worker, server):
    app = make_app(cluster.url(), OPTIONS)
    for number in range(60):
        app.send_task("sentinel.note", (number,), queue=QUEUES[number % 3], countdown=0.3 if number % 2 else None)
    with server.client(1) as journal:
        ran = Ran(journal)
        wait_until(lambda: len(ran.times()) == 60, 30, worker.tail)
        assert not ran.repeated()
    assert len(app.control.inspect(timeout=5, limit=1).ping()) == 1
    app.close()


def test_a_failover_of_one_shard_loses_nothing(cluster, worker, server):
    cluster.wait_until_whole()
    app = make_app(cluster.url(), {**OPTIONS, "wait_replicas": 1, "wait_replicas_timeout": 0.5})
    with server.client(1) as journal, Load(app) as load:
        more(load, worker)
        cluster.failover()
        more(load, worker, timeout_s=60)
    with server.client(1) as journal:
        check(load, Ran(journal), worker)
    app.close()


@pytest.mark.slow
def test_the_slot_of_a_shard_that_moves_loses_and_repeats_nothing(cluster, worker, server):
    cluster.wait_until_whole()
    app = make_app(cluster.url(), {**OPTIONS, "wait_replicas": 1, "wait_replicas_timeout": 0.5})
    with server.client(1) as journal, Load(app) as load:
        more(load, worker)
        # The queue `celery` is in shard 0. Its new owner has another shard already.
        cluster.migrate_key_by_key()
        more(load, worker, timeout_s=60)
    with server.client(1) as journal:
        check(load, Ran(journal), worker)
        assert not Ran(journal).repeated()
    app.close()


def test_shards_over_tls(tmp_path):
    folder = make_certificates(tmp_path, "DNS:localhost,IP:127.0.0.1")
    with tls_cluster(folder) as cluster:
        with kombu.Connection(tls_url(cluster.url(), folder), transport_options=OPTIONS) as connection:
            inbox = Inbox(connection.channel(), *QUEUES)
            for queue in QUEUES:
                publish(connection.default_channel, queue, queue)
            assert sorted(inbox.drain(SHARDS, timeout_s=30)) == sorted(QUEUES)
        slots = {slot_of(key.decode()) for node in primaries(cluster) for key in node.ask("KEYS", "*")}
        assert len(slots) == SHARDS


def test_a_declared_queue_is_found_by_a_cluster_client_of_any_kind(cluster):
    with kombu.Connection(cluster.url(), transport_options=OPTIONS) as connection:
        declare(connection.channel(), *QUEUES)
        assert [connection.channel().queue_sizes(queue) for queue in QUEUES] == [Sizes(0, 0, 0)] * 3


def slots_asked(cluster):
    """Return how often the nodes were asked who owns which slot."""
    stats = [node.ask("INFO", "commandstats") for node in cluster.nodes]
    return sum(one.get("cmdstat_cluster|slots", {"calls": 0})["calls"] for one in stats)


def test_the_owners_of_all_shards_are_asked_for_in_one_question_a_second(cluster):
    cluster.wait_until_whole()
    with kombu.Connection(cluster.url(), transport_options=OPTIONS) as connection:
        inbox = Inbox(connection.channel(), *QUEUES)
        inbox.rest(0.5)
        before, began = slots_asked(cluster), time.monotonic()
        wait_until(lambda: inbox.pump(0.05) or time.monotonic() > began + 4, 10)
        asked, took_s = slots_asked(cluster) - before, time.monotonic() - began
    assert 1 <= asked <= took_s + 2, (asked, took_s)


def test_a_failover_that_one_look_finds_is_known_of_every_shard(cluster):
    cluster.wait_until_whole()
    with kombu.Connection(cluster.url(), transport_options=OPTIONS) as connection:
        inbox = Inbox(connection.channel(), *QUEUES)
        count = 0
        for node in [node for node in cluster.nodes if "master" not in node.myself().flags]:
            node.ask("CLUSTER", "FAILOVER")
            wait_until(lambda node=node: "master" in node.myself().flags, 20)
            # One after the other: a consumer without any shard left hears of it.
            for queue in QUEUES:
                wait_until(lambda queue=queue: _published(connection, queue), 20)
            count += SHARDS
            assert sorted(inbox.drain(count)[-SHARDS:]) == sorted(QUEUES)


def _published(connection, queue):
    try:
        publish(connection.channel(), queue, queue, retry=False)
    except ShardUnreachable:
        return False
    return True


def test_the_number_of_shards_is_raised_and_the_queues_move_between_nodes(cluster):
    queues, more_shards = [f"orders.{number}" for number in range(2 * SHARDS)], {**OPTIONS, "shards": 2 * SHARDS}
    with kombu.Connection(cluster.url(), transport_options=OPTIONS) as old:
        channel = old.channel()
        declare(channel, *queues)
        for queue in queues:
            publish(channel, queue, *range(120))
        with raise_of_url(f"{cluster.url()}?shards={SHARDS}", 2 * SHARDS) as raised:
            assert sum(raised.run(lambda: False)) == 120 * len(raised_queues(queues))
        publish(channel, queues[-1], 120, retry=True)
    with kombu.Connection(cluster.url(), transport_options=more_shards) as new:
        for queue in queues:
            count = 120 + (queue == queues[-1])
            assert Inbox(new.channel(), queue).drain(count, timeout_s=10) == list(range(count))


def raised_queues(queues):
    """Return those whose shard is another one with twice as many: shard 0 stays, and so do prefixes that both numbers have."""
    before, after = shard_prefixes("", SHARDS), shard_prefixes("", 2 * SHARDS)
    return [queue for queue in queues if before[shard_of(queue, SHARDS)] != after[shard_of(queue, 2 * SHARDS)]]


def test_the_maintenance_of_an_idle_shard_wakes_for_its_heartbeat_and_little_else(cluster, monkeypatch):
    rounds, run = [], TaskRunner.run
    news = kombu.Queue(named(0, "hears"), kombu.Exchange("news", "fanout"), exclusive=True)

    def counted(runner, **about):
        rounds.append(runner)
        return run(runner, **about)

    with kombu.Connection(cluster.url(), transport_options=OPTIONS) as connection:
        inbox = Inbox(connection.channel(), *QUEUES, news)
        settled = time.monotonic() + 5
        wait_until(lambda: not inbox.pump(0.2) and time.monotonic() > settled, 15)
        monkeypatch.setattr(TaskRunner, "run", counted)
        over = time.monotonic() + 10
        wait_until(lambda: not inbox.pump(0.2) and time.monotonic() > over, 20)
    # The heartbeats of a second, and few more: the looks for subscribers, lost processes and the owner of the slot go with them.
    assert len(set(rounds)) == SHARDS
    assert len(rounds) < 10 * SHARDS * 2.1, len(rounds)
