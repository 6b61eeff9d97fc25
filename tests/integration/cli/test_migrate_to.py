"""`celery-redis-plus migrate --reverse --to`: kombu's own transport is on another server, or in another database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.migration.remote_exporter import RemoteExporter
from celery_redis_plus.migration.remote_importer import KEPT_AFTERWARDS_MS, KEPT_MS
from tests.support.command_kills import CommandKills
from tests.support.inbox import Inbox, declare, publish
from tests.support.kombu_installation import TASK, declare_old, in_seconds


@pytest.fixture
def there(server, broker_url):
    """A channel of kombu's own Redis transport in another database."""
    with kombu.Connection(server.url(1, scheme="redis")) as connection:
        yield connection.default_channel


@pytest.fixture
def there_client(server):
    with server.client(1) as client:
        yield client


@pytest.fixture
def back(cli, server):
    return lambda *options: cli("migrate", "--reverse", "--to", server.url(1, scheme="redis"), "--priorities", "keep", *options)


def fill(channel):
    publish(channel, "shop", "a0", "b0")
    publish(channel, "shop", "a9", "b9", priority=9)
    publish(channel, "shop", "later", headers={**TASK, "eta": in_seconds(600)})
    publish(channel, "shop", "x" * 1_100_000, priority=9)


def test_messages_go_to_another_database_in_their_order_with_priority_and_time(back, there, there_client, channel, redis_client):
    declare_old(there, "shop")
    declare(channel, "shop")
    fill(channel)
    assert "6 message(s) would be moved" in back("--dry-run").out

    ended = back("--json")

    assert (ended.status, ended.json["ready"], ended.json["delayed"], ended.json["left"]) == (0, 5, 1, 0)
    messages = [there.basic_get("shop", no_ack=True) for _ in range(6)]
    assert [message.decode()[:5] for message in messages] == ["a0", "b0", "later", "a9", "b9", "xxxxx"]
    due = datetime.fromisoformat(messages[2].headers["eta"])
    assert timedelta(seconds=590) < due - datetime.now(UTC) < timedelta(seconds=601)
    # Nothing is left here but the queue, and there but the ids, which end.
    assert not redis_client.exists("queue:{shop}", "delayed:{shop}", "leaving:{shop}")
    assert 0 < there_client.pttl("celery_redis_plus.taken:shop") <= 3_600_000


@pytest.mark.sample(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_command_neither_loses_nor_doubles(back, there, there_client, redis_client, connect, monkeypatch, when):  # noqa: PLR0917
    kills = CommandKills(monkeypatch, when)
    at, killed = 0, True
    while killed:
        at += 1
        redis_client.flushdb()
        there_client.flushdb()
        declare_old(there, "shop")
        channel = connect().channel()
        declare(channel, "shop")
        fill(channel)
        killed = kills.is_killed(back, at)
        assert back().status == 0
        texts = [
            json.loads(text) for step in ("", "\x06\x163", "\x06\x169") for text in there_client.lrange(f"shop{step}", 0, -1)
        ]
        assert len(texts) == len({text["properties"]["delivery_tag"] for text in texts}) == 6, f"killed {when} call {at}"
        assert not redis_client.exists("leaving:{shop}")
    assert at > 10


def test_what_the_list_there_refuses_goes_with_the_next_run(back, there, there_client, channel, monkeypatch):
    declare_old(there, "shop")
    declare(channel, "shop")
    publish(channel, "shop", "a")
    store = RemoteExporter._store  # noqa: SLF001 - what happens before its second step

    def refused(*arguments):
        there_client.set("shop", "foreign")
        store(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteExporter, "_store", refused)
        assert back().status != 0
    there_client.delete("shop")
    assert back("--json").json["ready"] == 1
    assert there.basic_get("shop", no_ack=True).decode() == "a"


def test_what_somebody_else_has_put_on_the_way_stays(back, there, channel, redis_client):
    declare_old(there, "shop")
    declare(channel, "shop")
    publish(channel, "shop", "a")
    redis_client.lpush("leaving:{shop}", "by somebody else")
    assert back("--json").json["ready"] == 1
    assert there.basic_get("shop", no_ack=True).decode() == "a"
    assert redis_client.lrange("leaving:{shop}", 0, -1) == [b"by somebody else"]


def test_a_command_that_was_stopped_keeps_its_ids_for_days(there_client, channel, redis_client, server, broker_url):
    """What is still on its way may be stored there already."""
    declare(channel, "shop")
    redis_client.lpush("leaving:{shop}", b"1" * 32 + b" 0 {}")
    there_client.zadd("celery_redis_plus.taken:shop", {b"1" * 32: 1})
    there_client.pexpire("celery_redis_plus.taken:shop", KEPT_MS)
    with BrokerAdmin(broker_url) as admin, admin.migration({}, source=server.url(1, scheme="redis")) as migration:
        assert list(migration.give(migration.exporter(), ["shop"], lambda: True)) == []
    assert there_client.pttl("celery_redis_plus.taken:shop") > KEPT_AFTERWARDS_MS


def test_the_doctor_names_what_a_killed_command_has_left(cli, channel, redis_client):
    declare(channel, "shop")
    redis_client.lpush("leaving:{shop}", b"0" * 32 + b" 0 {}")
    ended = cli("doctor", "--check", "unconverted")
    assert ended.status == 1
    assert "an interrupted `migrate --reverse --to` has left them" in ended.out


def test_what_there_is_no_queue_for_stays_and_options_are_checked(cli, back, channel, connect, server):
    inbox = Inbox(connect().channel(), "shop", ack=False, prefetch=1)
    publish(channel, "shop", "held", "waits")
    inbox.drain(1)
    ended = back("--json")
    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 1, 1)
    for options, said in (
        (("--to", server.url(1)), "allowed with --reverse"),
        (("--reverse", "--to-prefix", "x:"), "allowed with --to"),
        (("--reverse", "--from", server.url(1)), "with --to for another database"),
    ):
        refused = cli("migrate", *options)
        assert (refused.status, said in refused.err) == (2, True)
