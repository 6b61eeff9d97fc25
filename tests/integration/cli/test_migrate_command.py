"""`celery-redis-plus migrate`: messages of kombu's own Redis transport become ours."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime, timedelta

import kombu
import pytest

from tests.support.inbox import declare, publish
from tests.support.kombu_installation import TASK, declare_old, in_seconds
from tests.support.program import forked
from tests.support.waiting import wait_until


def test_waiting_messages_of_all_priorities_come_in_their_order(cli, old, channel, received, redis_client, broker_url):
    declare_old(old, "shop")
    declare(channel, "shop")
    for body, priority in (("a6", 6), ("a0", 0), ("a9", 9), ("b6", 6), ("b0", 0), ("a3", 3)):
        publish(old, "shop", body, priority=priority, headers={"trace": "t"}, correlation_id=body)
    publish(old, "shop", b"\x00\xff", priority=9, content_type="application/data", content_encoding="binary")

    ended = cli("migrate", "--json", "--broker", f"{broker_url}?priority_order=low-first")

    assert ended.json == {
        "queue": "shop", "ready": 7, "delayed": 0, "unacked": 0, "left": 0, "reasons": [], "moved": 7,
    }  # fmt: skip
    assert ended.status == 0
    messages = received("shop", 7, priority_order="low-first")
    assert [message.decode() for message in messages[:-1]] == ["a0", "b0", "a3", "a6", "b6", "a9"]
    assert messages[-1].body == b"\x00\xff"
    assert (messages[0].headers["trace"], messages[0].properties["correlation_id"]) == ("t", "a0")
    assert [message.properties["priority"] for message in messages] == [0, 0, 3, 6, 6, 9, 9]
    assert not [key for key in redis_client.keys("shop*") if redis_client.type(key) == b"list"]
    assert cli("check").status == 0


def test_an_eta_and_an_expiry_are_kept(cli, old, channel, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    eta, expires = in_seconds(3600), in_seconds(1800)
    publish(old, "shop", "later", headers={**TASK, "eta": eta})
    publish(old, "shop", "over", headers={**TASK, "eta": in_seconds(-5)})
    publish(old, "shop", "mortal", headers={**TASK, "expires": expires})

    assert cli("migrate", "--json").json["delayed"] == 1

    (delayed,) = cli("messages", "list", "shop", "--state", "delayed", "--json").lines
    due = datetime.fromisoformat(delayed["due"])
    assert timedelta(0) <= due - datetime.fromisoformat(eta) < timedelta(milliseconds=2)
    assert delayed["headers"]["eta"] == eta
    ((_, expiry),) = redis_client.zrange(channel.session.keys.queue("shop").expiry, 0, -1, withscores=True)
    assert abs(expiry / 1000 - datetime.fromisoformat(expires).timestamp()) < 0.002
    assert redis_client.sismember(channel.session.keys.always_swept, "shop")


def test_large_bodies_and_many_messages_are_moved(cli, old, channel, received):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", *range(250))
    publish(old, "shop", "x" * 2_000_000)
    publish(old, "shop", "last")

    assert cli("migrate", "--json").json["ready"] == 252

    bodies = [message.decode() for message in received("shop", 252)]
    assert bodies[:250] == list(range(250))
    assert (len(bodies[250]), bodies[251]) == (2_000_000, "last")


def test_priorities_need_a_choice_where_the_orders_differ(cli, old, channel, received):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", "last", priority=9)
    publish(old, "shop", "first", priority=0)

    refused = cli("migrate")

    assert refused.status == 1
    assert "priority 9: kombu's Redis transport delivers 0 first" in refused.err
    assert "--priorities invert" in refused.err
    assert cli("migrate", "--priorities", "invert", "--json").json["ready"] in {1, 2}
    assert [message.decode() for message in received("shop", 2)] == ["first", "last"]


def test_messages_that_a_worker_has_stay_with_it(cli, old, channel, received, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", "held", "waits")
    publish(old, "shop", "scheduled", headers={**TASK, "eta": in_seconds(600)})
    held = old.basic_get("shop")
    scheduled = [old.basic_get("shop"), old.basic_get("shop")][-1]
    assert scheduled.headers["eta"]
    publish(old, "shop", "new")

    (status,) = cli("migrate", "--status", "--json").lines
    assert (status["queue"], status["waiting"], status["unacked"], status["scheduled"]) == ("shop", {"0": 1}, 3, 1)
    assert 590 < status["last_due_s"] <= 600
    assert status["left"] == 4
    assert cli("migrate", "--json").json["moved"] == 1
    assert cli("migrate", "--take-unacked", "--older-than", "1h", "--json").lines == []

    moved = cli("migrate", "--take-unacked", "--json").json

    assert (moved["ready"], moved["delayed"], moved["unacked"]) == (2, 1, 3)
    assert [message.decode() for message in received("shop", 3)] == ["new", "held", "waits"]
    assert not redis_client.exists("unacked", "unacked_index")
    # The worker that had it finds nothing to ack, and nothing to restore at its end.
    held.ack()
    scheduled.requeue()
    assert cli("migrate", "--status", "--json").lines[0]["left"] == 0


def test_the_status_tells_of_the_oldest_delivery_and_of_the_latest_eta(cli, old, redis_client):
    declare_old(old, "shop")
    for eta_s in (600, 60):
        publish(old, "shop", "scheduled", headers={**TASK, "eta": in_seconds(eta_s)})
    first, _ = old.basic_get("shop"), old.basic_get("shop")
    redis_client.zincrby("unacked_index", -100, first.delivery_tag)

    (status,) = cli("migrate", "--status", "--json").lines

    assert 100 <= status["oldest_unacked_s"] < 160
    assert 540 < status["last_due_s"] <= 600


def test_what_a_worker_gives_back_at_its_end_is_taken(cli, server, channel, received):
    with kombu.Connection(server.url(scheme="redis")) as connection:
        worker = connection.channel()
        declare_old(worker, "shop")
        declare(channel, "shop")
        publish(worker, "shop", "a", "b")
        worker.basic_consume("shop", False, lambda _: None, "tag")
        wait_until(lambda: drained(connection) or len(worker.qos._delivered) == 2)  # noqa: SLF001 - kombu's own
        assert cli("migrate", "--json").lines == []
        worker.close()

    assert cli("migrate", "--json").json["ready"] == 2
    assert sorted(message.decode() for message in received("shop", 2)) == ["a", "b"]


def drained(connection):
    connection.drain_events(timeout=1)


def test_a_queue_that_is_not_declared_here_is_left_and_named(cli, old, channel, received):
    declare_old(old, "shop")
    publish(old, "shop", "a", "b")

    ended = cli("migrate", "--json")

    assert (ended.status, ended.json["left"]) == (1, 2)
    assert "this broker has no such queue" in ended.json["reasons"][0]
    assert cli("migrate", "--declare", "shop", "--json").json["ready"] == 2
    assert len(received("shop", 2)) == 2


def test_a_message_that_is_none_of_kombus_stays_and_the_others_go(cli, old, channel, received, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    redis_client.rpush("shop", "no message")
    publish(old, "shop", "a", headers={**TASK, "eta": "soon"})
    publish(old, "shop", *range(120))

    ended = cli("migrate", "--json")

    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 120, 2)
    assert "it is no message of kombu's" in ended.json["reasons"][0]
    assert "eta 'soon' is no ISO 8601 time" in ended.json["reasons"][1]
    assert redis_client.llen("shop") == 2
    assert "queue 'shop': it is no message" in cli("migrate").err


def odd(**parts):
    """Return a message as kombu's list has it, with parts that kombu does not write."""
    properties = {"delivery_tag": "1", "priority": 0, "delivery_info": {}}
    message = {"body": '"odd"', "content-type": "application/json", "content-encoding": "utf-8", "headers": {}}
    return json.dumps({**message, "properties": {**properties, **parts.pop("properties", {})}, **parts})


@pytest.mark.parametrize(
    "text",
    [
        odd(headers=[1]),
        odd(headers="abc"),
        "[" * 200_000 + "]" * 200_000,
        odd(headers={"a": {"__type__": "nosuch", "__value__": "z"}}),
        odd(properties={"delivery_info": ["a"]}),
        odd(properties={"priority": float("inf")}),
        odd(headers={"task": "a", "id": "1", "eta": 10**400}),
    ],
    ids=["list", "text", "nested", "type", "delivery_info", "priority", "eta"],
)
def test_an_odd_message_stays_and_those_behind_it_go(cli, old, channel, redis_client, text):
    declare_old(old, "shop")
    declare(channel, "shop")
    redis_client.lpush("shop", text)
    publish(old, "shop", "a")

    ended = cli("migrate", "--json")

    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 1, 1)
    assert redis_client.lrange("shop", 0, -1) == [text.encode()]


def test_a_message_without_delivery_info_is_delivered(cli, old, channel, redis_client, received):
    declare_old(old, "shop")
    declare(channel, "shop")
    text = json.loads(odd(properties={"delivery_info": None}))
    redis_client.lpush("shop", json.dumps(text))
    del text["properties"]["delivery_info"], text["headers"]
    redis_client.lpush("shop", json.dumps(text))

    assert cli("migrate", "--json").json["ready"] == 2

    assert [message.decode() for message in received("shop", 2)] == ["odd", "odd"]


def test_an_unacked_message_of_several_queues_stays_for_all_of_them(cli, old, channel, redis_client):
    for name in ("audit", "billing"):
        kombu.Queue(name, kombu.Exchange("orders"), routing_key="order")(old).declare()
    declare(channel, "audit", "billing")
    kombu.Producer(old).publish("a", exchange="orders", routing_key="order")
    old.basic_get("audit").ack()
    unacked = old.basic_get("billing")

    ended = cli("migrate", "--take-unacked", "--json")

    assert (ended.status, ended.json["queue"], ended.json["left"], ended.json["moved"]) == (1, "audit", 1, 0)
    assert "bound to several queues ('audit', 'billing')" in ended.json["reasons"][0]
    assert redis_client.hlen("unacked") == 1
    unacked.requeue()


def test_an_unacked_message_whose_binding_is_gone_is_named(cli, old, channel, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", "a")
    unacked = kombu.Queue("shop")(old).get()
    entry = json.loads(redis_client.hget("unacked", unacked.delivery_tag))
    redis_client.hset("unacked", unacked.delivery_tag, json.dumps([entry[0], "another", "shop"]))

    ended = cli("migrate", "--take-unacked", "--json")

    assert (ended.status, ended.json["queue"], ended.json["left"]) == (1, "?", 1)
    assert "whose queue is unknown" in ended.json["reasons"][0]
    assert cli("migrate", "--take-unacked", "-Q", "shop", "--json").lines == []


def test_a_dry_run_and_a_choice_of_queues_move_nothing_else(cli, old, channel, redis_client):
    declare_old(old, "shop", "mail")
    declare(channel, "shop", "mail")
    publish(old, "shop", "a")
    publish(old, "mail", "b")

    assert cli("migrate", "--dry-run").out.endswith("2 message(s) would be moved\n")
    assert redis_client.llen("shop") == 1
    assert cli("migrate", "-Q", "mail", "--json").json["queue"] == "mail"
    assert (redis_client.llen("shop"), redis_client.llen("mail")) == (1, 0)


def test_keys_under_a_prefix_and_with_names_of_their_own_are_found(cli, server, connect, broker_url):
    options = {"global_keyprefix": "shop:", "sep": "::"}
    with kombu.Connection(server.url(scheme="redis"), transport_options=options) as connection:
        declare_old(connection.default_channel, "q")
        publish(connection.default_channel, "q", "a")
    declare(connect(global_keyprefix="shop:").channel(), "q")

    assert cli("migrate", "--json").lines == []
    assert cli("--prefix", "shop:", "migrate", "--json").json["ready"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--older-than", "1h"], "allowed with --take-unacked"),
        (["--follow", "--dry-run"], "allowed without --status and --dry-run"),
        (["--reverse", "--take-unacked"], "allowed without --take-unacked and --declare"),
    ],
)
def test_options_that_exclude_one_another_are_named(cli, options, said):
    ended = cli("migrate", *options)
    assert ended.status == 2
    assert said in ended.err


def test_follow_takes_what_is_published_until_it_is_stopped(old, channel, received, broker_url):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", "before")
    with forked("celery_redis_plus", "migrate", "--follow", "--json", "--broker", broker_url) as process:
        assert received("shop", 1)[0].decode() == "before"
        publish(old, "shop", *range(5))
        assert [message.decode() for message in received("shop", 5)] == list(range(5))
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.stdout.read(), process.stderr.read()
        assert (process.wait(20), err) == (0, "")
    assert '"ready": 6' in out


def test_a_kill_in_the_middle_neither_loses_nor_doubles(cli, old, channel, received, broker_url, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(old, "shop", *range(600))
    ready = channel.session.keys.queue("shop").ready
    with forked("celery_redis_plus", "migrate", "--broker", broker_url) as process:
        wait_until(lambda: redis_client.zcard(ready) >= 50, interval_s=0.001)
        process.kill()
    assert redis_client.zcard(ready) + redis_client.llen("shop") == 600

    assert cli("migrate").status == 0

    assert [message.decode() for message in received("shop", 600)] == list(range(600))


def test_bodies_of_an_installation_without_body_encoding_come(cli, server, channel, received):
    declare(channel, "shop")
    with kombu.Connection(server.url(scheme="redis"), transport_options={"body_encoding": None}) as connection:
        declare_old(connection.default_channel, "shop")
        publish(connection.default_channel, "shop", "as json")
        for body in (b"text", b"\x00\xff"):
            publish(connection.default_channel, "shop", body, content_type="application/data", content_encoding="binary")

    assert cli("migrate", "--json").json["ready"] == 3

    messages = received("shop", 3)
    assert messages[0].decode() == "as json"
    assert [message.body for message in messages[1:]] == [b"text", b"\x00\xff"]


def test_follow_asks_little_of_a_server_without_work(old, channel, broker_url, redis_client):
    declare_old(old, *(f"shop{number}" for number in range(5)))
    with forked("celery_redis_plus", "migrate", "--follow", "--broker", broker_url) as process:

        def calls(name):
            return redis_client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"]

        redis_client.config_resetstat()
        wait_until(lambda: calls("llen") > 500)
        process.terminate()
    # The bindings are not looked for in each pass, and lists without messages are not read.
    assert calls("scan") < 6
    assert calls("lrange") == 0
