"""Celery workers whose queues are in three shards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import celery_redis_plus as crp
from celery_redis_plus.errors import OptionError
from celery_redis_plus.integration.messages import install_revoke
from celery_redis_plus.integration.one_shard import WorkerShard
from tests.integration.shards.conftest import SHARDS, named
from tests.support.tls import make_certificates, tls_in_front_of
from tests.support.waiting import wait_until

QUEUES = [named(shard) for shard in range(SHARDS)]
CONFIG = {"broker_transport_options": {"shards": SHARDS}}


@pytest.fixture
def app(celery_app):
    return celery_app("configured", **CONFIG)


@pytest.mark.sample(2)
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent"])
def test_tasks_of_all_shards_run(app, celery_worker, notes, pool):
    worker = celery_worker("configured", pool=pool, config=CONFIG, queues=QUEUES)
    for number in range(30):
        app.send_task("c.note", ["shards", str(number)], queue=QUEUES[number % 3])
    for number in range(30, 36):
        app.send_task("c.note", ["shards", str(number)], queue=QUEUES[number % 3], countdown=0.5)
    assert sorted(map(int, notes.wait_for("shards", 36, 30, worker.tail))) == list(range(36))


def test_remote_control_and_broadcasts_work(app, celery_worker, notes):
    workers = [celery_worker("configured", pool="solo", config=CONFIG, name=name, queues=QUEUES) for name in ("one", "two")]
    inspect = app.control.inspect(timeout=5, limit=2)
    wait_until(lambda: len(inspect.ping() or {}) == 2, 20, workers[0].tail)
    for answer in inspect.active_queues().values():
        assert {queue["name"] for queue in answer} == set(QUEUES)
    app.send_task("c.note", ["later", "1"], queue=QUEUES[1], countdown=3600)
    wait_until(lambda: [one for one in inspect.scheduled().values() if one], 10)


def test_the_last_queue_is_not_kept_waiting_by_the_first(app, celery_worker, notes):
    for queue in QUEUES:
        for number in range(20):
            app.send_task("c.note", ["fair", f"{queue}:{number}", 0.02], queue=queue)
    options = ["--prefetch-multiplier", "1"]
    worker = celery_worker("configured", pool="solo", concurrency=1, config=CONFIG, queues=QUEUES, options=options)
    notes.wait_for("fair", 60, 30, worker.tail)
    done = notes.done("fair")
    # The other shards are looked at each 0.05 s, while 20 tasks of the first queue take 0.4 s.
    assert {entry.split(":")[0] for entry in done[:20]} == set(QUEUES), done


def test_a_killed_worker_loses_no_task_of_any_shard(app, celery_worker, notes):
    config = {**CONFIG, "task_acks_late": True, "task_reject_on_worker_lost": True}
    config["broker_transport_options"] = {"shards": SHARDS, "visibility_timeout": 3, "connection_lost_grace": 1}
    worker = celery_worker("configured", pool="threads", config=config, queues=QUEUES)
    for number in range(60):
        app.send_task("c.note", ["killed", str(number), 0.05], queue=QUEUES[number % 3])
    wait_until(lambda: len(notes.done("killed")) > 5, 20, worker.tail)
    worker.kill()
    worker = celery_worker("configured", pool="threads", config=config, name="two", queues=QUEUES)
    wait_until(lambda: len(set(notes.done("killed"))) == 60, 40, worker.tail)


def test_a_lost_connection_to_one_shard_loses_nothing(app, celery_worker, notes, redis_client):
    worker = celery_worker("configured", pool="threads", config=CONFIG, queues=QUEUES)
    app.send_task("c.note", ["cut", "before"], queue=QUEUES[0])
    notes.wait_for("cut", 1, 20, worker.tail)
    for number in range(60):
        app.send_task("c.note", ["cut", str(number), 0.02], queue=QUEUES[number % 3])
        if number == 20:
            victim = next(one for one in redis_client.client_list() if one["name"] == "celery-redis-plus:wakeups")
            redis_client.client_kill_filter(_id=victim["id"])
    wait_until(lambda: len(set(notes.done("cut"))) == 61, 40, worker.tail)


def test_tasks_are_found_and_revoked_out_of_all_shards(celery_app):
    app = celery_app("configured", **CONFIG)
    install_revoke(app)
    connection = app.connection_for_write()
    ids = [app.send_task("c.note", ["revoked", str(shard)], queue=QUEUES[shard], countdown=3600).id for shard in range(SHARDS)]
    for queue, task_id in zip(QUEUES, ids, strict=True):
        assert crp.message(app, task_id).queue == queue
        assert crp.reschedule(app, task_id, 7200)
    app.control.revoke(ids)
    sizes = [connection.default_channel.queue_sizes(queue) for queue in QUEUES]
    connection.release()
    assert [one.delayed for one in sizes] == [0, 0, 0]


def test_the_worker_works_over_tls(app, server, tmp_path, celery_worker, notes):
    with tls_in_front_of(server.port, make_certificates(tmp_path)) as port:
        url = f"redispluss://localhost:{port}/0?shards={SHARDS}&ssl_ca_certs={tmp_path}/ca.pem"
        worker = celery_worker("configured", url, pool="threads", queues=QUEUES)
        for number in range(6):
            app.send_task("c.note", ["tls", str(number)], queue=QUEUES[number % 3])
        assert len(notes.wait_for("tls", 6, 30, worker.tail)) == 6
        worker.stop()


def test_a_worker_of_one_shard_consumes_its_queues_alone(app, celery_worker, notes):
    worker = celery_worker("configured", pool="solo", config=CONFIG, queues=QUEUES, options=["--shard", "1"])
    for queue in QUEUES:
        app.send_task("c.note", ["one", queue], queue=queue)
    notes.wait_for("one", 1, 20, worker.tail)
    inspect = app.control.inspect(timeout=5, limit=1)
    (queues,) = inspect.active_queues().values()
    assert [queue["name"] for queue in queues] == [QUEUES[1]]
    assert notes.done("one") == [QUEUES[1]]


@pytest.mark.parametrize(("shard", "why"), [(1, "none of the queues .* is on it"), (3, "there is no shard 3; allowed: 0 to 2")])
def test_a_worker_of_a_shard_without_queues_does_not_start(app, shard, why):
    app.amqp.queues.select([QUEUES[0]])
    with pytest.raises(OptionError, match=why):
        WorkerShard(SimpleNamespace(app=app), shard=shard)
