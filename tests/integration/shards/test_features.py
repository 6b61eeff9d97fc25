"""What one broker does, on several shards: events, tracked deliveries, migration, tests of apps."""

from __future__ import annotations

import json
import threading

import kombu
import pytest
from celery import Celery
from kombu import pools

import celery_redis_plus as crp
from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.errors import DeliveryNotFound, OptionError, Unroutable
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.testing import advance, assert_enqueued, drain
from celery_redis_plus.testing.tested_app import pointed_at
from tests.integration.shards.conftest import SHARDS, named
from tests.support.inbox import Inbox, declare, publish
from tests.support.kombu_installation import declare_old, old
from tests.support.waiting import wait_until

__all__ = ["old"]

QUEUES = [named(shard) for shard in range(SHARDS)]


@pytest.fixture
def url(broker_url):
    return f"{broker_url}?shards={SHARDS}"


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# -- unique tasks


@pytest.mark.parametrize("options", [{"unique": "until-success"}, {"debounce": 600}])
def test_a_duplicate_is_told_whichever_exchange_it_goes_through(options, url):
    app = crp.configure_app(Celery("shop", broker=url, set_as_current=False))
    app.conf.task_queues = [kombu.Queue(QUEUES[1], kombu.Exchange("named", type="topic"), routing_key="all")]

    @app.task(name="once", shared=False, unique_by=[], **options)
    def once(number):
        """Never called."""

    results = [once.apply_async((number,), queue=QUEUES[1], routing_key="all") for number in range(3)]
    assert len({result.id for result in results}) == 1
    assert [result.is_duplicate or result.is_replacement for result in results] == [False, True, True]
    app.close()
    pools.reset()


# -- limiters


def test_each_shard_limits_by_itself_and_a_hold_stands_in_all(channel, url):
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, "1", "2", headers={"x-limiter": "a:1/h"})
    taken = [channel.basic_get(queue) for queue in QUEUES * 2]
    assert [message and message.payload for message in taken] == ["1"] * SHARDS + [None] * SHARDS
    with admin_of_url(url) as admin:
        (found,) = admin.limiters()
        assert (found.limiter, found.waiting, found.queues) == ("a", SHARDS, SHARDS)
        assert [one.limiter for one in admin.limiters_of(QUEUES[2])] == ["a"]
        admin.set_limiter("a", "1000/s")
        assert [wait_until(lambda queue=queue: channel.basic_get(queue), 10).payload for queue in QUEUES] == ["2"] * SHARDS
    crp.limit.hold("b", 60, app=channel.connection.client)


def test_a_task_takes_of_the_limiter_in_the_shard_of_its_queue(url, broker_url):
    app = crp.configure_app(Celery("shop", broker=url, set_as_current=False))
    app.conf.update(task_acks_late=True, task_queues=[kombu.Queue(queue, durable=True) for queue in QUEUES])
    seen = []

    @app.task(name="limits", shared=False, rate_limit="all:concurrency=1")
    def limits():
        with crp.limit("places:concurrency=1", timeout=5, app=app), crp.limit("a:1/h", timeout=0, app=app):
            seen.append(1)

    with pointed_at(app, url, crp.redis_url(broker_url)):
        for queue in QUEUES:
            limits.apply_async(queue=queue)
        drain(app=app)
    assert len(seen) == SHARDS
    app.close()
    pools.reset()


# -- events


def test_each_shard_has_the_events_of_its_queues(connect_shards, url, capsys):
    connection = connect_shards(event_log=True)
    inbox = Inbox(connection.channel(), *QUEUES)
    for queue in QUEUES:
        publish(connection.default_channel, queue, "x")
    inbox.drain(SHARDS)
    with admin_of_url(url) as admin:
        wait_until(lambda: all(admin.counters(queue).acked == 1 for queue in QUEUES))
    for shard, queue in enumerate(QUEUES):
        with EventLog(f"{url}&shard={shard}") as log:
            assert log.queues() == [queue]
        assert main(["events", "export", "--broker", url, "--shard", str(shard), "--format", "jsonl", "--output", "-"]) == 0
        assert {one["queue"] for one in lines(capsys)} == {queue}
    assert main(["events", "export", "--broker", url, "--format", "jsonl", "--output", "-"]) == 0
    assert {one["queue"] for one in lines(capsys)} == set(QUEUES)


@pytest.mark.parametrize("shard", ["3", "-1", "x"])
def test_a_shard_that_there_is_not_is_refused(url, shard):
    with pytest.raises(OptionError, match=r"there is no shard .*; allowed: 0 to 2"):
        EventLog(f"{url}&shard={shard}")


def test_one_shard_can_be_administered(connect_shards, url, broker_url, capsys):
    declare(connect_shards().channel(), *QUEUES)
    assert main(["queues", "--broker", url, "--shard", "1", "--json"]) == 0
    assert [one["queue"] for one in lines(capsys)] == [QUEUES[1]]
    assert main(["queues", "--broker", broker_url, "--shard", "1"]) != 0
    assert "there is no shard 1; allowed: 0" in capsys.readouterr().err


# -- tracked deliveries


def test_a_tracked_publish_to_a_queue_of_any_shard_is_followed(connect_shards):
    connection = connect_shards()
    inbox = Inbox(connect_shards().channel(), *QUEUES)
    for queue in QUEUES:
        delivery = crp.publish("x", connection=connection, routing_key=queue, track=True)
        assert dict(delivery.outcomes()) in ({queue: "pending"}, {queue: "queued"})
        inbox.drain(len(inbox.messages) + 1)
        assert delivery.wait(10)
        assert delivery.complete
        assert dict(crp.delivery(delivery.id, connection=connect_shards()).outcomes()) == {queue: "acked"}
    with pytest.raises(DeliveryNotFound):
        crp.delivery("none", connection=connection)


def test_a_tracked_publish_to_queues_of_several_shards_is_one_delivery(connect_shards):
    connection, channel = connect_shards(), connect_shards().channel()
    exchange = kombu.Exchange("orders", "topic")
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "new.#")(channel).declare()
    inbox = Inbox(channel, *[kombu.Queue(queue, no_declare=True) for queue in QUEUES], ack=False)
    delivery = crp.publish("x", connection=connection, exchange="orders", routing_key="new.one", track=True)
    called, resolved = [], threading.Event()
    delivery.on_complete(lambda one: called.append(("complete", one)))
    delivery.on_resolved(lambda one: (called.append(("resolved", one)), resolved.set()))
    inbox.drain(SHARDS)
    assert not delivery.resolved
    for message in inbox.messages:
        message.ack()
    assert delivery.wait(10)
    assert resolved.wait(10)
    assert dict(delivery.outcomes()) == dict.fromkeys(QUEUES, "acked")
    assert called == [("complete", delivery), ("resolved", delivery)]
    with pytest.raises(Unroutable):
        crp.publish("x", connection=connection, exchange="orders", routing_key="other", track=True, mandatory=True)


def test_a_tracked_broadcast_is_answered_by_subscribers_of_queues_of_all_shards(connect_shards):
    news = kombu.Exchange("news", "fanout")
    queues = [kombu.Queue(f"{queue}.news", news, auto_delete=True) for queue in QUEUES]
    inbox = Inbox(connect_shards().channel(), *queues)
    delivery = crp.broadcast("all", "news", connection=connect_shards())
    assert inbox.drain(SHARDS) == ["all"] * SHARDS
    assert delivery.wait(10)
    assert sorted(delivery.outcomes().values()) == ["acked"] * SHARDS


# -- migration


def test_messages_of_kombus_transport_come_to_their_shards_and_go_back(connect_shards, old, url, capsys, redis_client):
    channel = connect_shards().channel()
    declare_old(old, *QUEUES)
    declare(channel, *QUEUES)
    for number, queue in enumerate(QUEUES):
        publish(old, queue, *range(number + 1))
    assert main(["migrate", "--status", "--broker", url, "--json"]) == 0
    assert {one["queue"]: one["left"] for one in lines(capsys)} == {QUEUES[0]: 1, QUEUES[1]: 2, QUEUES[2]: 3}
    assert main(["migrate", "--broker", url, "--json"]) == 0
    assert [(one["queue"], one["moved"]) for one in lines(capsys)] == [
        (queue, QUEUES.index(queue) + 1) for queue in sorted(QUEUES)
    ]
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [1, 2, 3]
    for shard, prefix in enumerate(shard_prefixes("", SHARDS)):
        assert redis_client.zcard(f"{prefix}queue:{{{QUEUES[shard]}}}") == shard + 1
    assert main(["migrate", "--reverse", "--broker", url]) == 0
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [0, 0, 0]
    assert [redis_client.llen(queue) for queue in QUEUES] == [1, 2, 3]


def test_a_migration_of_one_shard_moves_its_queues_alone(connect_shards, old, url, capsys):
    channel = connect_shards().channel()
    declare_old(old, *QUEUES)
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(old, queue, "x")
    assert main(["migrate", "--broker", url, "--shard", "2"]) == 0, capsys.readouterr()
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [0, 0, 1]


def test_a_worker_takes_from_kombus_lists_into_their_shards(celery_app, celery_worker, notes, server):
    config = {"broker_transport_options": {"shards": SHARDS, "take_from_kombu": True}}
    worker = celery_worker("configured", pool="threads", config=config, queues=QUEUES)
    app = celery_app("alone", server.url(scheme="redis"))
    for number, queue in enumerate(QUEUES):
        app.send_task("c.note", ["taken", str(number)], queue=queue)
    assert sorted(notes.wait_for("taken", SHARDS, 30, worker.tail)) == ["0", "1", "2"]


# -- tests of apps


def test_the_testing_package_works_on_all_shards(celery_app, broker_url, server):
    app = celery_app("configured", broker_transport_options={"shards": SHARDS})
    app.conf.task_routes = None
    ran = []

    @app.task(name="shards.note")
    def note(number):
        ran.append(number)

    app.conf.task_queues = [kombu.Queue(queue) for queue in QUEUES]
    with pointed_at(app, broker_url, server.url(1, "redis")):
        for number, queue in enumerate(QUEUES):
            note.apply_async((number,), queue=queue)
            note.apply_async((number + 10,), queue=queue, countdown=600)
            assert_enqueued(note, args=[number], queue=queue)
        assert drain() == SHARDS
        advance(601)
        assert drain() == SHARDS
        assert sorted(ran) == [0, 1, 2, 10, 11, 12]
