"""`fence()`: the number by which a database refuses a task that lost its message."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from kombu import Queue
from kombu.common import Broadcast

import celery_redis_plus as crp
from celery_redis_plus.errors import NoFence
from celery_redis_plus.testing import running_worker
from tests.support.waiting import wait_until

ORDERS = 100
LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 1}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", pytest.param("gevent", marks=pytest.mark.weekly)])
def test_a_frozen_worker_that_comes_back_is_refused_by_the_store_each_time(pool, life_app, life_worker, tmp_path):
    store, gate = tmp_path / "shop.db", tmp_path / "gate"
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, fence INTEGER NOT NULL DEFAULT 0)")
        db.execute("CREATE TABLE begun (id, fence, redelivered)")
        db.execute("CREATE TABLE ended (id, fence, written)")
        db.executemany("INSERT INTO orders (id) VALUES (?)", [(order,) for order in range(ORDERS)])
        db.commit()

    def rows(query):
        with closing(sqlite3.connect(store, timeout=30)) as db:
            return db.execute(query).fetchall()

    url_options = {
        "settings": {**LATE, "broker_transport_options": {"visibility_timeout": 3}},
        "pool": pool,
        "concurrency": ORDERS,
    }
    stale = life_worker(**url_options)
    app = life_app()
    for order in range(ORDERS):
        app.send_task("life.pay", [str(store), order, str(gate)])
    wait_until(lambda: len(rows("SELECT * FROM begun")) == ORDERS, 60, stale.tail)
    stale.freeze()
    owner = life_worker(**url_options)
    wait_until(lambda: len(rows("SELECT * FROM ended")) == ORDERS, 60, owner.tail)
    gate.touch()
    stale.thaw()
    wait_until(lambda: len(rows("SELECT * FROM ended")) == 2 * ORDERS, 60, stale.tail)
    assert rows("SELECT written, count(*) FROM ended GROUP BY written") == [(0, ORDERS), (1, ORDERS)]
    tokens = "SELECT max(fence), id FROM begun WHERE {} GROUP BY id ORDER BY id"
    first, second = rows(tokens.format("NOT redelivered")), rows(tokens.format("redelivered"))
    assert all(before < after for (before, _), (after, _) in zip(first, second, strict=True))
    assert rows("SELECT fence, id FROM orders ORDER BY id") == second


#: Pool and `acks_late`.
ACKS = [("solo", True), ("prefork", True), ("prefork", False), ("threads", False), ("gevent", True)]
MORE_ACKS = [("solo", False), ("threads", True), ("gevent", False)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("pool", "late"), [*ACKS, *(pytest.param(*one, marks=pytest.mark.weekly) for one in MORE_ACKS)])
def test_each_pool_has_a_token_of_sixty_four_bits_that_grows_with_the_next_message(pool, late, life_app, life_worker, tmp_path):
    if pool == "gevent":
        pytest.importorskip(pool)
    store, gate = tmp_path / "shop.db", tmp_path / "gate"
    gate.touch()
    with closing(sqlite3.connect(store)) as db:
        db.executescript(
            "CREATE TABLE orders (id INTEGER, fence INTEGER DEFAULT 0); CREATE TABLE begun (id, fence, redelivered);"
            "CREATE TABLE ended (id, fence, written); INSERT INTO orders (id) VALUES (1);"
        )
    worker, app = life_worker(pool=pool, settings={"task_acks_late": late}, concurrency=1), life_app()

    def ended():
        with closing(sqlite3.connect(store, timeout=30)) as db:
            return db.execute("SELECT fence, written FROM ended ORDER BY rowid").fetchall()

    for count in (1, 2):
        app.send_task("life.pay", [str(store), 1, str(gate)])
        wait_until(lambda count=count: len(ended()) == count, 60, worker.tail)
    (first, one), (second, two) = ended()
    assert (one, two) == (1, 1)
    assert 0 < first < second < 1 << 63


def test_no_token_where_there_is_no_message_of_ones_own(app):
    app.conf.task_queues = [Queue("q", durable=True), Broadcast("news")]
    app.conf.task_default_queue = "q"
    seen = []

    @app.task(name="fenced")
    def fenced():
        try:
            seen.append(crp.fence())
        except NoFence as error:
            seen.append(str(error))

    with pytest.raises(NoFence, match="called outside a task of a worker"):
        crp.fence()
    eager = [fenced.apply().get() or seen.pop() for _ in range(2)]
    assert 0 < eager[0] <= eager[1] < 1 << 63
    with running_worker(app):
        fenced.apply_async(queue="news")
        wait_until(lambda: seen)
    assert "its message is a broadcast, which every subscriber gets" in seen[0]
