"""No process that lives counts as lost, whatever happens to its connections and to the server, with default options.

`tox -e chaos -- tests/chaos/test_false_alarms.py --chaos-full --scale 0.1` for a tenth of the full counts, which take hours.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

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
PROCESSES, LEADER = "processes:{presence}", "leader:{presence}"
PAUSE_S = 10.0
CONNECTIONS = 200
#: Seconds for which a task stops all threads of its process, and for which the server stands still meanwhile.
STOPPED_S, STANDSTILL_S = 60, 4.0
#: Processes that compute all the time.
BUSY_PROCESSES = 20
#: What the server is kept busy with, some tenths of a second a call.
COMPUTE = "local sum = 0; for i = 1, 1e7 do sum = sum + i end; return sum"


@pytest.fixture
def times(request):
    """How often to do what is done `full` times in the full counts."""
    scale = request.config.getoption("--scale")
    return lambda full: max(1, round(full * scale))


@pytest.fixture
def crew(chaos_worker, chaos_app):
    """Start workers on a server, which all have messages: `crew(server, url)`. `beside` is a queue of one more, of threads."""
    workers = []

    def start(server, url=None, beside=None):
        config = {"task_acks_late": True, "worker_prefetch_multiplier": 2, "broker_connection_max_retries": None}
        for pool in POOLS:
            one = chaos_worker(
                url or server.url(), visibility_timeout=300, pool=pool, concurrency=1 if pool == "solo" else 2, config=config
            )
            workers.append(one.start(wait=False))
        if beside:
            one = chaos_worker(
                server.url(), visibility_timeout=300, pool="threads", concurrency=2, queues=[beside], config=config
            )
            workers.append(one.start(wait=False))
        for one in workers:
            one.wait_until_ready(60)
        app = chaos_app(server.url(), visibility_timeout=300)
        with server.client() as client:
            for number in range(len(POOLS) * HELD):
                app.send_task("chaos.held", [f"m{number}"])
            wait_until(lambda: client.hlen(PROCESSES) == len(workers) + 1 and client.zcard("messages_index:{celery}") >= 8, 30)
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


# An hour and what waiting adds to it.
@pytest.mark.timeout(2 * 3600)
def test_processes_and_servers_that_stand_still(times, start_server, crew, chaos_app, ledger, figures):
    """A task that holds the interpreter's lock, a server that is frozen or busy, a frozen leader, a machine without time."""
    server = durable(start_server)
    workers = crew(server, beside="stopped")
    app, minutes, leaders = chaos_app(server.url(), visibility_timeout=300), times(60), 0
    app.send_task("chaos.held", ["held"], queue="stopped")
    with busy_machine():
        for minute in range(minutes):
            app.send_task("chaos.stop_threads", [f"stopped{minute}", STOPPED_S], queue="stopped")
            wait_until(lambda minute=minute: f"stopped{minute}" in {entry.task for entry in ledger.read()}, 60)
            end = time.monotonic() + STOPPED_S
            server.freeze()
            time.sleep(STANDSTILL_S)
            server.thaw()
            with busy_server(server):
                time.sleep(random.uniform(5, 10))
            leaders += freeze_leader(server, random.uniform(2, 20))
            time.sleep(max(0.0, end - time.monotonic()))
        wait_until(lambda: f"stopped{minutes - 1}" in ledger.ended(), 60)
    assert_none_lost(workers, server)
    assert [entry.task for entry in ledger.read() if entry.redelivered] == []
    figures(
        f"{minutes} minutes of a task that stops all threads, each with {STANDSTILL_S:.0f} s of a frozen server, 5 to 10 s of a "
        f"busy one, {BUSY_PROCESSES} busy processes beside, {leaders} times the leader frozen: no process counted as lost"
    )


@contextmanager
def busy_machine():
    """Compute in more processes than there are processors."""
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=compute, daemon=True) for _ in range(BUSY_PROCESSES)]
    for one in busy:
        one.start()
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.join()


def compute():
    while os.getppid() != 1:
        sum(range(10**6))


@contextmanager
def busy_server(server):
    """Keep the server computing, so that every command waits for its turn."""
    over = threading.Event()

    def keep_busy():
        with server.client(db=2) as client:
            while not over.is_set():
                client.eval(COMPUTE, 0)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def freeze_leader(server, seconds):
    """Freeze the leader where it is a worker; return whether it is."""
    with server.client() as client:
        record = client.hget(PROCESSES, client.hget(LEADER, "process") or "")
    pid = json.loads(record)["pid"] if record else os.getpid()
    if pid == os.getpid():
        return False
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    return True
