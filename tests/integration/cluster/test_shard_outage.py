"""A node of a cluster that dies takes one shard with it, and no other."""

from __future__ import annotations

import itertools
import threading
import time

import kombu
import pytest
from kombu.exceptions import OperationalError

from celery_redis_plus.connection.cluster_address import one_slot_prefix, slot_of
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.errors import NoPermission, ServerOutOfMemory, ShardUnreachable
from celery_redis_plus.shards import shard_state
from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Ran
from tests.integration.shards.conftest import SHARDS, named
from tests.support.clusters import running_cluster
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

QUEUES = [named(shard) for shard in range(SHARDS)]
OPTIONS = {"shards": SHARDS, "visibility_timeout": 60}


@pytest.fixture
def cluster(broker_url):
    """Three primaries without replicas, which answer while one of them is dead."""
    with running_cluster(replicas=0, config={"cluster-require-full-coverage": "no", "appendonly": "yes"}) as running:
        yield running


def node_of(cluster, shard):
    slot = slot_of(one_slot_prefix(shard_prefixes("", SHARDS)[shard]))
    return next(node for node in cluster.nodes if node.running and node.myself().owns(slot))


def connect(cluster):
    return kombu.Connection(cluster.url(), transport_options=OPTIONS)


def test_consumers_and_publishers_of_the_other_shards_go_on(cluster):
    with connect(cluster) as consuming, connect(cluster) as publishing:
        inbox = Inbox(consuming.channel(), *QUEUES)
        channel = publishing.channel()
        for queue in QUEUES:
            publish(channel, queue, "before")
        inbox.drain(3)
        dead = node_of(cluster, 1)
        dead.kill()
        for queue in (QUEUES[0], QUEUES[2]):
            publish(channel, queue, "meanwhile")
        assert sorted(inbox.drain(5, timeout_s=10)) == ["before"] * 3 + ["meanwhile"] * 2
        with pytest.raises(ShardUnreachable, match=r"shard 1 of 3 \(redisplus\+cluster://.*\) is unreachable"):
            publish(channel, QUEUES[1], "lost", retry=False)
        started = machine_time()
        for queue in (QUEUES[0], QUEUES[2]):
            publish(channel, queue, "again")
        inbox.drain(7, timeout_s=10)
        assert machine_time() - started < 2
        dead.start()
        wait_until(lambda: dead.state()["cluster_state"] == "ok", 20)
        back = machine_time()
        wait_until(lambda: _published(channel, QUEUES[1]), 10)
        inbox.drain(8, timeout_s=10)
        assert machine_time() - back < 5
        assert inbox.bodies[-1] == "back"


@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("ACL SETUSER default -evalsha", "ACL SETUSER default +evalsha"),
    ],
)
def test_a_node_that_answers_and_refuses_takes_its_shard_alone(cluster, refuse, allow):
    with connect(cluster) as connection:
        inbox = Inbox(connection.channel(), *QUEUES)
        channel, refusing = connection.channel(), node_of(cluster, 0)
        for queue in QUEUES:
            publish(channel, queue, "before")
        inbox.drain(3)
        refusing.ask(*refuse.split())
        for number in range(20):
            publish(channel, QUEUES[1 + number % 2], "meanwhile")
            inbox.pump(0.05)
        inbox.drain(23, timeout_s=5)
        started = machine_time()
        with pytest.raises((ShardUnreachable, NoPermission), match=r"NOREPLICAS|no permission"):
            publish(channel, QUEUES[0], "lost", retry=False)
        assert machine_time() - started < 1
        assert connection.transport.shard_state(1).is_down is connection.transport.shard_state(2).is_down is False
        refusing.ask(*allow.split())
        wait_until(lambda: not inbox.pump(0.05) and _published(channel, QUEUES[0]), 10)
        assert inbox.drain(24, timeout_s=5)[-1] == "back"


@pytest.mark.parametrize("refuse", ["CONFIG SET min-replicas-to-write 1", "CONFIG SET maxmemory 1"])
def test_a_node_that_refuses_writes_keeps_no_message_from_the_queues_of_others(cluster, refuse):
    options, exchange = {**OPTIONS, "socket_connect_timeout": 1}, kombu.Exchange("orders", "topic")
    news = kombu.Exchange(named(0, "news"), "fanout")
    with kombu.Connection(cluster.url(), transport_options=options) as connection:
        channel, hearing = connection.channel(), connection.channel()
        for queue in QUEUES:
            kombu.Queue(queue, exchange, "#")(channel).declare()
        inbox = Inbox(hearing, kombu.Queue("heard", news, exclusive=True))
        inbox.pump(0.2)
        node_of(cluster, 0).ask(*refuse.split())
        with pytest.raises((ShardUnreachable, ServerOutOfMemory)):
            kombu.Producer(channel).publish("order", exchange="orders", routing_key="x", retry=False)
        assert [channel.queue_sizes(queue).ready for queue in QUEUES[1:]] == [1, 1]
        kombu.Producer(channel).publish("news", exchange=news, retry=False)
        assert inbox.drain(1, timeout_s=5) == ["news"]


def _published(channel, queue):
    try:
        publish(channel, queue, "back", retry=False)
    except ShardUnreachable:
        return False
    return True


WEEKLY = [pytest.param(pool, marks=pytest.mark.weekly) for pool in ("threads", "solo")]


@pytest.mark.parametrize("pool", ["prefork", *WEEKLY])
def test_a_worker_goes_on_with_the_other_shards(cluster, server, start_worker, pool):
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool=pool, concurrency=2, env=env, queues=QUEUES)
    app, numbers, confirmed, refused = make_app(cluster.url(), OPTIONS), iter(range(1, 100_000)), [], []
    app.conf.task_publish_retry = False
    over = threading.Event()

    def load(shard):
        while not over.is_set():
            number = next(numbers)
            try:
                app.send_task("sentinel.note", (number,), queue=QUEUES[shard])
            except (ShardUnreachable, OperationalError) as error:
                refused.append((shard, str(error)))
            else:
                confirmed.append((number, shard, time.time()))
            over.wait(0.02)

    threads = [threading.Thread(target=load, args=(shard,)) for shard in range(SHARDS)]
    for thread in threads:
        thread.start()
    try:
        with server.client(1) as journal:
            wait_until(lambda: len(Ran(journal).times()) > 60, 30, worker.tail)
            dead = node_of(cluster, 2)
            dead.kill()
            died = time.time()
            # By then the loops, the publishers and the maintenance of all shards have met it.
            time.sleep(6)
            assert len(app.control.inspect(timeout=3).ping() or {}) == 1, worker.tail()
            alive = [(number, at) for number, shard, at in confirmed if shard != 2 and died + 1 < at < died + 5]
            assert len(alive) > 100
            ran = Ran(journal).times()
            late = sorted(ran.get(number, time.time()) - at for number, at in alive)
            assert late[-1] < 2, (late[-10:], worker.tail())
            dead.start()
            wait_until(lambda: dead.state()["cluster_state"] == "ok", 20)
            back = time.time()
            wait_until(lambda: any(at > back and shard == 2 for _, shard, at in confirmed), 10, worker.tail)
            over.set()
            for thread in threads:
                thread.join()
            wait_until(lambda: not {number for number, *_ in confirmed} - set(Ran(journal).times()), 30, worker.tail)
            assert not Ran(journal).repeated()
            assert {shard for shard, _ in refused} == {2}
            assert all("shard 2 of 3" in text for _, text in refused), refused[:3]
            assert worker.running
    finally:
        over.set()
        app.close()


def test_a_worker_starts_while_a_shard_is_down(cluster, server, start_worker):
    with connect(cluster) as connection:
        declare(connection.channel(), *QUEUES)
    dead = node_of(cluster, 0)
    dead.kill()
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool="threads", env=env, queues=QUEUES)
    app = make_app(cluster.url(), OPTIONS)
    app.send_task("sentinel.note", (1,), queue=QUEUES[1])
    with server.client(1) as journal:
        wait_until(lambda: len(Ran(journal).times()) == 1, 30, worker.tail)
        dead.start()
        wait_until(lambda: dead.state()["cluster_state"] == "ok", 20)
        app.send_task("sentinel.note", (2,), queue=QUEUES[0])
        wait_until(lambda: len(Ran(journal).times()) == 2, 15, worker.tail)
    app.close()


def test_a_publisher_to_a_node_that_hangs_waits_once(cluster):
    options = {**OPTIONS, "socket_timeout": 2, "socket_connect_timeout": 4}
    with kombu.Connection(cluster.url(), transport_options=options) as connection:
        channel, hangs = connection.channel(), node_of(cluster, 1)
        declare(channel, QUEUES[1])
        publish(channel, QUEUES[1], "before")
        hangs.freeze()
        try:
            started = machine_time()
            with pytest.raises(ShardUnreachable, match="shard 1 of 3"):
                publish(channel, QUEUES[1], "lost", retry=False)
            # Until its first command times out, and what is left of the time for a connection.
            assert machine_time() - started < 5
        finally:
            hangs.thaw()


def test_a_node_that_hangs_delays_one_connection_once(cluster):
    with connect(cluster) as connection:
        declare(connection.channel(), *QUEUES)
    hangs, took_s = cluster.nodes[0], []
    others = [shard for shard in range(SHARDS) if node_of(cluster, shard) is not hangs]
    hangs.freeze()
    try:
        shard_state.forget()
        for _ in range(2):
            for shard in others:
                started = time.monotonic()
                with connect(cluster) as new:
                    new.connect()
                    new.transport.open(shard)
                took_s.append(time.monotonic() - started)
    finally:
        hangs.thaw()
    # All know the same: the first one of the address gets a second for its answer, and is asked last from then on.
    assert took_s[0] < 2
    assert max(took_s[1:]) < 0.5


@pytest.mark.parametrize("pool", ["threads", pytest.param("prefork", marks=pytest.mark.weekly)])
def test_a_node_that_hangs_keeps_no_task_of_the_others_waiting(cluster, server, start_worker, pool):
    """A machine without power refuses nothing: the worker waits for `socket_timeout`, and delivers meanwhile."""
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool=pool, concurrency=2, env=env, queues=QUEUES)
    app, hangs, sent = make_app(cluster.url(), OPTIONS), node_of(cluster, 1), {}

    def load(seconds):
        until = time.monotonic() + seconds
        for number in itertools.count(len(sent) + 1):
            if time.monotonic() > until:
                return
            sent[number] = time.time()
            app.send_task("sentinel.note", (number,), queue=QUEUES[2 * (number % 2)])
            time.sleep(0.02)

    try:
        with server.client(1) as journal:
            load(1)
            wait_until(lambda: set(Ran(journal).times()) == set(sent), 30, worker.tail)
            load(2)
            hangs.freeze()
            # Longer than the `socket_timeout` of 5 s: what has asked the node for messages gives it up.
            load(8)
            wait_until(lambda: set(Ran(journal).times()) == set(sent), 10, worker.tail)
            hangs.thaw()
            ran = Ran(journal).times()
            assert max(ran[number] - at for number, at in sent.items()) < 3.5, worker.tail()
            assert "shard 1 of 3" in worker.log_path.read_text()
            app.send_task("sentinel.note", (0,), queue=QUEUES[1])
            wait_until(lambda: 0 in Ran(journal).times(), 15, worker.tail)
            assert not Ran(journal).repeated()
    finally:
        hangs.thaw()
        app.close()
