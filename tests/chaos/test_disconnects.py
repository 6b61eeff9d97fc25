"""A worker whose connections are cut again and again, of every kind (issue A, Shows 8)."""

import random
import time
from collections import Counter

import pytest
import redis
from kombu import Connection, Queue
from kombu.asynchronous import Hub

from tests.chaos.ledger import repeats
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 300
PREFIX = "celery-redis-plus:"


def connections_of_worker(client):
    """The server's id -> purpose of the worker's connections; the test's own have another name."""
    return {row["id"]: row["name"].removeprefix(PREFIX) for row in client.client_list() if row["name"].startswith(PREFIX)}


def vitals(app, worker):
    """What the worker says of its loop, threads and descriptors, over a connection that is not cut."""
    replies = wait_until(lambda: app.control.broadcast("chaos_vitals", reply=True, timeout=2, limit=1), 20, worker.tail)
    return next(iter(replies[0].values()))


def settled(app, worker):
    """The vitals, once two looks in a row agree."""
    last = []

    def same_again():
        last.append(vitals(app, worker))
        return len(last) > 1 and growth(last[-2], last[-1]) == {} and last[-1]

    return wait_until(same_again, 30, lambda: last, interval_s=1)


def growth(before, after):
    """What is there more or less often than before, by kind."""
    changed = {}
    for kind in before:
        old, new = Counter(before[kind]), Counter(after[kind])
        if old != new:
            changed[kind] = {"more": dict(new - old), "fewer": dict(old - new)}
    return changed


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_worker_survives_forced_disconnects(*, pool, full, own_server, ledger, chaos_app, chaos_worker, figures):
    cuts = 1000 if full else 20
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    worker = chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool, config={"task_acks_late": True})
    worker.start()
    sent = 0

    def send(sleep_s=0.0):
        nonlocal sent
        app.send_task("chaos.run", [f"t{sent}", sleep_s])
        sent += 1

    with own_server.client() as client:
        for number in range(20):
            # Two at once, each on a thread of its own: a pool makes its second thread when the first one is busy.
            send(0.5 if number < 2 else 0)
        wait_until(lambda: len(ledger.ended()) == sent, 20, worker.tail)
        before = settled(app, worker)
        kinds = Counter()
        began = time.monotonic()
        while kinds.total() < cuts:
            time.sleep(random.uniform(0, 0.2))
            if random.random() < 0.5:
                send(random.choice([0, 0, 0.05]))
            found = connections_of_worker(client)
            if not found:
                continue
            victim = random.choice(list(found))
            try:
                client.client_kill_filter(_id=victim)
            except redis.ResponseError:
                continue
            kinds[found[victim]] += 1
        took_s = time.monotonic() - began
        for _ in range(20):
            send()
        wait_until(lambda: len(ledger.ended()) == sent, 60, lambda: f"{sent} {places(client, QUEUE)} {worker.tail()}")
        wait_until(lambda: empty(client, QUEUE), 20, lambda: places(client, QUEUE))
        after = settled(app, worker)
        check_invariants(client)
    assert worker.stop() == 0
    figures(
        f"{cuts} cuts in {took_s:.0f} s {dict(kinds)}: {sent} tasks all ran, repeats {repeats(ledger.started())}; "
        f"loop timers {len(before['timers'])} -> {len(after['timers'])}, threads {len(before['threads'])} -> "
        f"{len(after['threads'])}, descriptors {len(before['files'])} -> {len(after['files'])}"
    )
    assert repeats(ledger.started()) == 0
    assert growth(before, after) == {}
    assert "please report it" not in worker.log()


def test_a_connection_that_breaks_before_it_consumes_is_given_up(*, own_server):
    """Celery joins the loop before it declares and consumes: what breaks in between must not stay in the loop for ever."""
    hub = Hub()
    connection = Connection(own_server.url())
    transport, first = connection.transport, connection.connection
    transport.register_with_event_loop(first, hub)
    with own_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    delivery_loop = transport.delivery_loop
    with pytest.raises(connection.connection_errors):
        transport.session.commands.read_ready()
    Queue("q")(connection.default_channel).declare()
    assert transport.delivery_loop is delivery_loop, "kombu has replaced what the loop waits for"
    with pytest.raises(connection.connection_errors):
        delivery_loop.on_tick()
    connection.collect()
    assert not hub.on_tick
    assert not hub.readers
    hub.close()
