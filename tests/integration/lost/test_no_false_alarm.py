"""No process that lives counts as lost: neither when connections break, nor when the server stands still or is another one."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest

from tests.integration.lost.conftest import GRACE_S
from tests.support.apps import make_app
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

REGISTRY, LEADER = "processes:{presence}", "leader:{presence}"
CONSUMING, MAINTENANCE = ("commands", "wakeups", "streams"), ("maintenance", "timers")
#: Longer than a leader may go without a look.
STANDSTILL_S = 4


def own_connections(client, *names):
    wanted = {f"celery-redis-plus:{name}" for name in names}
    return [one["id"] for one in client.client_list() if one["db"] == "0" and one["name"] in wanted]


def kill(client, *names):
    for number in own_connections(client, *names):
        client.client_kill_filter(_id=number)


def assert_all_run_once(workers, hold, journal, disturb, tasks=4):
    """Have each worker busy while something is disturbed, and see that no task is begun twice."""
    release = hold("n", tasks)
    wait_until(lambda: len(journal("started:n")) == tasks, 10, lambda: "".join(worker.tail() for worker in workers))
    disturb()
    # All have to be back, and watched for longer than the grace.
    time.sleep(GRACE_S + 1)
    release()
    wait_until(lambda: len(journal("n")) == tasks, 15, lambda: "".join(worker.tail() for worker in workers))
    assert sorted(journal("started:n")) == ["0", "1", "2", "3"][:tasks]
    assert not [line for worker in workers for line in worker.log().splitlines() if "is lost" in line]


@pytest.fixture
def hold(own_server, tmp_path):
    """Send tasks that run until the returned function is called: `hold("name", count)`."""
    app = make_app(own_server.url())

    def send_tasks(name, count):
        gate = tmp_path / f"{name}.go"
        for number in range(count):
            app.send_task("tests.note_when", [name, str(number), str(gate)])
        return gate.touch

    yield send_tasks
    app.close()


@pytest.fixture
def workers(worker, client):
    workers = [worker(socket_timeout=1), worker(socket_timeout=1)]
    wait_until(lambda: client.hlen(REGISTRY) == 3)
    return workers


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("names", [CONSUMING, MAINTENANCE], ids=["consuming", "maintenance"])
def test_broken_connections_lose_nothing_while_others_live_or_come_back(names, workers, hold, journal, client):
    def disturb():
        for _ in range(10):
            kill(client, *names)
            time.sleep(0.2)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
def test_a_worker_that_reconnects_within_the_grace_keeps_its_tasks(workers, hold, journal, client):
    def disturb():
        for _ in range(5):
            kill(client, *CONSUMING, *MAINTENANCE)
            time.sleep(0.7)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
def test_a_frozen_server_loses_nobody(workers, hold, journal, own_server):
    def disturb():
        own_server.freeze()
        time.sleep(STANDSTILL_S)
        own_server.thaw()

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.sample(1)
@pytest.mark.slow
def test_a_worker_whose_task_holds_the_gil_is_not_lost(workers, hold, journal, own_server):
    def disturb():
        app = make_app(own_server.url())
        app.send_task("tests.hold_gil", ["gil", "0", GRACE_S + 2])
        app.close()
        wait_until(lambda: journal("gil"), GRACE_S + 12)

    # Each worker has room for one more.
    assert_all_run_once(workers, hold, journal, disturb, 2)
    assert journal("started:gil") == ["0"]


@pytest.mark.slow
def test_a_leader_that_is_frozen_and_thawed_neither_is_lost_nor_loses_others(workers, hold, journal, client):
    def disturb():
        led = client.hgetall(LEADER)
        [leader] = [one for one in workers if one.pid == json.loads(client.hget(REGISTRY, led["process"]))["pid"]]
        leader.freeze()
        wait_until(lambda: client.hget(LEADER, "process") != led["process"])
        time.sleep(GRACE_S + 1)
        leader.thaw()
        assert client.hget(LEADER, "epoch") == str(int(led["epoch"]) + 1)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
@pytest.mark.parametrize("everything", [True, False], ids=["all", "writes"])
def test_a_paused_server_loses_nobody(everything, workers, hold, journal, client):
    def disturb():
        client.client_pause(STANDSTILL_S * 1000, all=everything)
        # Who comes back cannot say so.
        kill(client, *CONSUMING, *MAINTENANCE)
        time.sleep(STANDSTILL_S)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
def test_a_server_that_closes_idle_connections_loses_nobody(workers, hold, journal, client):
    """The setting `timeout` spares clients that are blocked: each process has one."""

    def disturb():
        client.config_set("timeout", 1)
        time.sleep(STANDSTILL_S)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
def test_a_restart_of_the_server_loses_nobody(workers, hold, journal, own_server):
    def disturb():
        for stop in (own_server.stop, own_server.kill):
            stop()
            time.sleep(GRACE_S + 0.5)
            own_server.start()
            time.sleep(0.5)

    assert_all_run_once(workers, hold, journal, disturb)


@pytest.mark.slow
def test_a_failover_to_a_replica_loses_nobody(worker, send, journal, client, start_server):
    replica = start_server()
    port = client.connection_pool.connection_kwargs["port"]
    place = [port]
    with replica.client(decode_responses=True) as second, ExitStack() as stack:
        second.replicaof("127.0.0.1", port)
        wait_until(lambda: second.info("replication")["master_link_status"] == "up")
        proxy = stack.enter_context(Proxy(lambda: place[0]))
        workers = [worker(proxy.url()), worker(proxy.url())]
        wait_until(lambda: client.hlen(REGISTRY) == 3)
        send("n", 4, 6)
        wait_until(lambda: len(journal("started:n")) == 4, 10)
        wait_until(lambda: second.zcard("messages_index:{celery}") == 4)
        proxy.refuse()
        time.sleep(0.5)
        second.replicaof("no", "one")
        place[0] = second.connection_pool.connection_kwargs["port"]
        time.sleep(GRACE_S)
        proxy.heal()
        wait_until(lambda: second.zcard("messages_index:{celery}") == 0, 20, workers[0].tail)
        assert sorted(journal("started:n")) == ["0", "1", "2", "3"]
        assert sorted(journal("n")) == ["0", "1", "2", "3"]
        assert not [line for one in workers for line in one.log().splitlines() if "is lost" in line]


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(("refused", "reason"), [("-client|list", "CLIENT LIST"), ("-client|id", "CLIENT ID"), ("-info", "INFO")])
def test_where_the_server_does_not_let_us_ask_the_visibility_timeout_holds_and_one_line_says_so(
    refused, reason, own_server, worker, send, journal
):
    with own_server.client() as client:
        client.acl_setuser(
            "limited", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=["+@all", refused]
        )
    url = own_server.url().replace("redisplus://", "redisplus://limited:secret@")
    dead, heir = worker(url, visibility_timeout=4), worker(url, visibility_timeout=4)
    send("n", 4, 1)
    wait_until(lambda: len(journal("started:n")) == 4, 10, heir.tail)
    dead.kill()
    wait_until(lambda: len({*journal("n")}) == 4, 15, heir.tail)
    assert "is lost" not in heir.log()
    lines = [line for line in heir.log().splitlines() if "connection_lost_grace" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    assert heir.log().count("ERROR") == 0


@pytest.mark.slow
def test_a_frozen_worker_is_not_lost_before_the_visibility_timeout(worker, send, journal, client):
    """Its connections exist: nobody can tell it from one that computes."""
    frozen, heir = worker(visibility_timeout=6), worker(visibility_timeout=6)
    send("n", 4, 1)
    wait_until(lambda: len(journal("started:n")) == 4)
    frozen.freeze()
    time.sleep(GRACE_S + 1.5)
    assert len(journal("started:n")) == 4
    wait_until(lambda: len({*journal("n")}) == 4, 15, heir.tail)
    assert "is lost" not in heir.log()
    frozen.thaw()
