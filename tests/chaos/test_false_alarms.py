"""No process that lives counts as lost, whatever happens to its connections and to the server, with default options.

`tox -e chaos -- tests/chaos/test_false_alarms.py --chaos-full --scale 0.1` for a tenth of the full counts, which take hours.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress

import pytest
import redis

from celery_redis_plus.options import Options
from tests.support.proxy import HOST, Proxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.full_only, pytest.mark.judged(acks=0)]
POOLS = ["prefork", "threads", "solo"]
#: Messages that each worker has.
HELD = 4
GRACE_S = Options().connection_lost_grace
PROCESSES = "processes:{presence}"
PAUSE_S = 10.0
CONNECTIONS = 200


@pytest.fixture
def times(request):
    """How often to do what is done `full` times in the full counts."""
    scale = request.config.getoption("--scale")
    return lambda full: max(1, round(full * scale))


@pytest.fixture
def crew(chaos_worker, chaos_app):
    """Start workers on a server, which all have messages: `crew(server, url)`. Ends with a check that none counted as lost."""
    workers, servers = [], []

    def start(server, url=None):
        config = {"task_acks_late": True, "worker_prefetch_multiplier": 2, "broker_connection_max_retries": None}
        for pool in POOLS:
            one = chaos_worker(
                url or server.url(), visibility_timeout=300, pool=pool, concurrency=1 if pool == "solo" else 2, config=config
            )
            workers.append(one.start(wait=False))
        for one in workers:
            one.wait_until_ready(60)
        app = chaos_app(server.url(), visibility_timeout=300)
        with server.client() as client:
            for number in range(len(POOLS) * HELD):
                app.send_task("chaos.held", [f"m{number}"])
            wait_until(lambda: client.hlen(PROCESSES) == len(POOLS) + 1 and client.zcard("messages_index:{celery}") >= 8, 30)
        servers.append(server)
        return workers

    yield start
    for one in workers:
        one.kill()


def assert_none_lost(workers, server):
    """See that nobody counts as lost, when each has had the time to."""
    time.sleep(GRACE_S + 3)
    lines = [line for worker in workers for line in worker.log().splitlines() if "is lost" in line]
    with server.client() as client:
        failed = [client.hget(key, "failed") for key in client.scan_iter("message:{celery}:*", count=1000)]
    assert lines == []
    assert failed
    assert not any(failed)


def cut(server):
    """End all connections of the workers' processes."""
    with server.client() as client:
        for one in client.client_list():
            if one["db"] == "0" and one["name"].startswith("celery-redis-plus"):
                with suppress(redis.ResponseError):
                    client.client_kill_filter(_id=one["id"])


def durable(start_server):
    return start_server({"appendonly": "yes"})


def test_reconnects(times, start_server, crew, figures):
    server = durable(start_server)
    workers = crew(server)
    reconnects = 0
    while reconnects < times(1000):
        cut(server)
        reconnects += len(workers)
        time.sleep(random.uniform(0.05, 0.6))
    assert_none_lost(workers, server)
    figures(f"{reconnects} reconnects of a process: none counted as lost")


def test_restarts(times, start_server, crew, figures):
    server = durable(start_server)
    workers = crew(server)
    for _ in range(times(50)):
        random.choice((server.stop, server.kill))()
        time.sleep(random.uniform(0, 3))
        server.start()
        time.sleep(random.uniform(0.1, 5))
    assert_none_lost(workers, server)
    figures(f"{times(50)} restarts of the server: no process counted as lost")


def test_pauses(times, start_server, crew, figures):
    server = durable(start_server)
    workers = crew(server)
    for number in range(times(20)):
        if number % 3 == 2:
            server.freeze()
            time.sleep(PAUSE_S)
            server.thaw()
        else:
            with server.client() as client:
                client.client_pause(int(PAUSE_S * 1000), all=number % 3 == 0)
            if number % 2:
                cut_paused(server)
            time.sleep(PAUSE_S)
        time.sleep(random.uniform(0, 4))
    assert_none_lost(workers, server)
    figures(f"{times(20)} pauses of {PAUSE_S:.0f} s (CLIENT PAUSE of all and of writes, SIGSTOP): no process counted as lost")


def cut_paused(server):
    """The same as `cut`, where the server answers nobody who asks while it is paused for all."""
    with suppress(redis.RedisError), server.client(socket_timeout=1) as client:
        for one in client.client_list():
            if one["db"] == "0" and one["name"].startswith("celery-redis-plus"):
                client.client_kill_filter(_id=one["id"])


def test_failovers(times, start_server, crew, figures):
    with ExitStack() as stack:
        place = [start_server()]
        proxy = stack.enter_context(Proxy(lambda: place[0].port))
        workers = crew(place[0], proxy.url())
        for _ in range(times(20)):
            replica = start_server()
            with replica.client(decode_responses=True) as client:
                client.replicaof(HOST, place[0].port)
                wait_until(lambda client=client: client.info("replication")["master_link_status"] == "up", 20)
                proxy.refuse()
                client.replicaof("no", "one")
            old, place[0] = place[0], replica
            time.sleep(random.uniform(0, 3))
            proxy.heal()
            old.stop()
            time.sleep(random.uniform(1, 6))
        assert_none_lost(workers, place[0])
    figures(f"{times(20)} failovers: no process counted as lost")


def test_slow_starts(times, start_server, crew, figures):
    server = start_server({"appendonly": "yes", "loading-process-events-interval-bytes": "1024"})
    workers = crew(server)
    with server.client() as client, ExitStack() as stack:
        client.execute_command("CONFIG", "SET", "key-load-delay", "0")
        with client.pipeline(transaction=False) as pipeline:
            for number in range(10_000):
                pipeline.set(f"load:{number}", "x")
            pipeline.execute()
        # Each key takes half a millisecond: 5 s in all.
        server.config["key-load-delay"] = "500"
        others = [stack.enter_context(server.client(db=2)) for _ in range(CONNECTIONS)]
        for _ in range(times(10)):
            server.kill()
            time.sleep(0.5)
            server.start()
            for other in others:
                other.ping()
            assert client.info("clients")["connected_clients"] >= CONNECTIONS
            time.sleep(random.uniform(1, 5))
    assert_none_lost(workers, server)
    figures(f"{times(10)} starts of the server that took 5 s, with {CONNECTIONS} other connections: no process counted as lost")
