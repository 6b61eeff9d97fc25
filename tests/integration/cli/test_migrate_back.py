"""`celery-redis-plus migrate --reverse`: our messages become those of kombu's own Redis transport again."""

from __future__ import annotations

import json
from datetime import datetime

import kombu

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.migration.exporter import PAGE, Exporter
from tests.support.inbox import Inbox, declare, publish
from tests.support.kombu_installation import TASK, declare_old, in_seconds


def get_old(old, queue, count):
    """Take messages as kombu's own transport delivers them."""
    return [old.basic_get(queue, no_ack=True) for _ in range(count)]


def test_back_go_all_priorities_in_their_order(cli, old, channel, redis_client, broker_url):
    declare_old(old, "shop")
    declare(channel, "shop")
    low_first = ("--broker", f"{broker_url}?priority_order=low-first", "migrate", "--reverse", "--json")
    for body, priority in (("a6", 6), ("a0", 0), ("a9", 9), ("b6", 6), ("b0", 0), ("a3", 3)):
        publish(channel, "shop", body, priority=priority, headers={"trace": "t"}, correlation_id=body)
    publish(channel, "shop", b"\x00\xff", priority=9, content_type="application/data", content_encoding="binary")

    ended = cli(*low_first)

    assert (ended.status, ended.json["ready"], ended.json["left"]) == (0, 7, 0)
    messages = get_old(old, "shop", 7)
    assert [message.decode() for message in messages[:-1]] == ["a0", "b0", "a3", "a6", "b6", "a9"]
    assert messages[-1].body == b"\x00\xff"
    assert (messages[0].headers["trace"], messages[0].properties["correlation_id"]) == ("t", "a0")
    assert [message.properties["priority"] for message in messages] == [0, 0, 3, 6, 6, 9, 9]
    assert cli("check").status == 0
    assert cli("counters", "shop", "--json").json["moved"] == 7


def test_back_goes_a_queue_of_several_pages_in_its_order(cli, old, channel):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(channel, "shop", *range(2 * PAGE + 1))

    assert cli("migrate", "--reverse", "--json").json["ready"] == 2 * PAGE + 1

    assert [message.decode() for message in get_old(old, "shop", 2 * PAGE + 1)] == list(range(2 * PAGE + 1))


def test_back_go_delayed_tasks_with_their_time(cli, old, channel):
    declare_old(old, "shop")
    declare(channel, "shop")
    eta = in_seconds(600)
    publish(channel, "shop", "as it is", headers={**TASK, "eta": eta})
    publish(channel, "shop", "rescheduled", headers={**TASK, "id": "another", "eta": eta})
    publish(channel, "shop", "no task", headers={"x-delay": 600_000})
    assert cli("messages", "reschedule", "another", "--in", "20m").status == 0

    ended = cli("migrate", "--reverse", "--json")

    assert (ended.status, ended.json["delayed"], ended.json["left"]) == (1, 2, 1)
    assert "it is delayed and no Celery task" in ended.json["reasons"][0]
    first, second = get_old(old, "shop", 2)
    assert (first.decode(), first.headers["eta"]) == ("as it is", eta)
    assert second.decode() == "rescheduled"
    assert 590 < (datetime.fromisoformat(second.headers["eta"]) - datetime.fromisoformat(eta)).total_seconds() <= 601


def test_back_goes_a_task_that_was_rescheduled_to_now_without_its_old_time(cli, old, channel):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(channel, "shop", "a", headers={**TASK, "eta": in_seconds(600)})
    publish(channel, "shop", "b", headers={**TASK, "id": "another", "eta": in_seconds(-5)})
    assert cli("messages", "reschedule", "an id", "--in", "0s").status == 0

    assert cli("migrate", "--reverse", "--json").json["ready"] == 2

    etas = {message.decode(): message.headers["eta"] for message in get_old(old, "shop", 2)}
    assert etas["a"] is None
    assert etas["b"] is not None


def test_back_transient_queues_are_named_and_unknown_ones_refused(cli, channel):
    for name, arguments in (("short", {"auto_delete": True}), ("mortal", {"expires": 3600}), ("empty", {"expires": 3600})):
        kombu.Queue(name, kombu.Exchange(name), routing_key=name, **arguments)(channel).declare()
    publish(channel, "short", 1)
    publish(channel, "mortal", 1, 2)

    ended = cli("migrate", "--reverse", "--json")

    assert (ended.status, [(one["queue"], one["left"]) for one in ended.lines]) == (1, [("mortal", 2), ("short", 1)])
    assert "auto_delete, exclusive or has x-expires" in ended.lines[0]["reasons"][0]
    refused = cli("migrate", "--reverse", "-Q", "nosuch")
    assert (refused.status, "there is no queue 'nosuch'" in refused.err) == (1, True)


def test_there_and_back_a_message_is_the_same(cli, old, channel, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(
        old, "shop", {"a": ["é", None, {}]}, headers={**TASK, "eta": in_seconds(600), "empty": [], "big": 2**60}, reply_to="r"
    )
    publish(old, "shop", "x" * 1_500_000, compression="zlib")
    publish(old, "shop", "y" * 1_500_000)
    before = redis_client.lrange("shop", 0, -1)

    assert cli("migrate", "--json").json["moved"] == 3
    assert cli("migrate", "--reverse", "--json").json["moved"] == 3

    # The delayed one goes last.
    after = [json.loads(text) for text in redis_client.lrange("shop", 0, -1)]
    assert sorted(map(without_tag, after)) == sorted(map(without_tag, map(json.loads, before)))


def without_tag(message):
    del message["properties"]["delivery_tag"]
    return json.dumps(message, sort_keys=True)


def test_back_what_consumers_have_and_dead_letters_stay_and_are_named(cli, old, channel, connect):
    declare_old(old, "shop")
    inbox = Inbox(connect().channel(), "shop", ack=False, prefetch=2)
    publish(channel, "shop", "dies", "held")
    inbox.drain(2)
    inbox.messages[0].reject()
    inbox.consumer.qos(prefetch_count=1)
    publish(channel, "shop", "waits")

    ended = cli("migrate", "--reverse", "--json")

    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 1, 2)
    assert "1 message(s) are unacked: stop the consumers" in ended.json["reasons"][0]
    assert "1 dead letter(s) stay" in ended.json["reasons"][1]


def test_what_goes_back_makes_room_at_a_limit_of_bytes(cli, old, channel, redis_client):
    declare_old(old, "shop")
    declare(channel, "shop", arguments={"x-max-length-bytes": 10_000})
    publish(channel, "shop", "held")
    held_bytes = redis_client.hget("meta:{shop}", "bytes")
    assert channel.basic_get("shop").payload == "held"
    publish(channel, "shop", "goes", "goes")
    assert cli("migrate", "--reverse", "--json").json["ready"] == 2
    assert redis_client.hget("meta:{shop}", "bytes") == held_bytes


def test_back_go_all_though_consumers_take_a_whole_page_meanwhile(cli, old, channel, connect, redis_client, monkeypatch):
    declare_old(old, "shop")
    declare(channel, "shop")
    publish(channel, "shop", *range(PAGE + 20))
    other, taken = connect().channel(), []
    give = Exporter._give  # noqa: SLF001 - what happens between its read and its move

    def take_first(self, queue, found):
        taken.extend(other.basic_get("shop", no_ack=True) for _ in range(0 if taken else PAGE))
        return give(self, queue, found)

    monkeypatch.setattr(Exporter, "_give", take_first)
    assert cli("migrate", "--reverse", "--json").status == 0
    assert (len(taken), redis_client.llen("shop"), redis_client.zcard("queue:{shop}")) == (PAGE, 20, 0)


def test_back_goes_a_task_that_is_rescheduled_meanwhile_with_its_new_time(cli, old, channel, broker_url, monkeypatch):
    declare_old(old, "shop")
    declare(channel, "shop")
    eta = in_seconds(600)
    publish(channel, "shop", "x", headers={**TASK, "eta": eta})
    give, found_first = Exporter._give, []  # noqa: SLF001 - as above

    def reschedule_first(self, queue, found):
        if found and not found_first:
            found_first.extend(found)
            with BrokerAdmin(broker_url) as admin:
                assert admin.queue_messages.reschedule("shop", found[0].tag.decode(), "+1200000")
        return give(self, queue, found)

    monkeypatch.setattr(Exporter, "_give", reschedule_first)
    assert cli("migrate", "--reverse", "--json").json["delayed"] == 1
    (message,) = get_old(old, "shop", 1)
    assert (datetime.fromisoformat(message.headers["eta"]) - datetime.fromisoformat(eta)).total_seconds() > 590
