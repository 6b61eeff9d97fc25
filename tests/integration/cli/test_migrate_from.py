"""`celery-redis-plus migrate --from`: kombu's data is in another database, or on another server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.migration.remote_importer import RemoteImporter
from tests.support.command_kills import CommandKills
from tests.support.inbox import Inbox, declare, publish


@pytest.fixture
def old(server, broker_url):
    """A channel of kombu's own Redis transport in another database, with the bound queue `shop`."""
    with kombu.Connection(server.url(1, scheme="redis")) as connection:
        kombu.Queue("shop", kombu.Exchange("shop"), routing_key="shop")(connection.default_channel).declare()
        yield connection.default_channel


@pytest.fixture
def migrate(cli, server):
    return lambda *options: cli("migrate", "--from", server.url(1, scheme="redis"), "--json", *options)


@pytest.fixture
def old_client(server):
    with server.client(1) as client:
        yield client


def fill(old):
    """Publish one message of each kind; one of them is unacked."""
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    publish(old, "shop", "held")
    old.basic_get("shop")
    publish(old, "shop", "a9", "b9", priority=9)
    publish(old, "shop", "a0", "b0")
    publish(old, "shop", "later", headers={"task": "shop.pay", "id": "1", "eta": later})


def bodies(channel, count):
    inbox = Inbox(channel, "shop")
    inbox.drain(count)
    return [message.decode() for message in inbox.messages]


def test_messages_come_from_another_database_in_their_order(migrate, old, old_client, channel, redis_client):
    declare(channel, "shop")
    fill(old)
    (status,) = [one for one in migrate("--status").lines if one["queue"] == "shop"]
    assert (status["waiting"], status["unacked"], status["here_ready"]) == ({"0": 3, "9": 2}, 1, 0)

    moved = migrate("--take-unacked", "--priorities", "invert").json

    assert (moved["ready"], moved["delayed"], moved["unacked"], moved["left"]) == (5, 1, 1, 0)
    assert bodies(channel, 5) == ["held", "a0", "b0", "a9", "b9"]
    assert [key for key in old_client.scan_iter() if b"binding" not in key] == []
    assert 3_000_000 < redis_client.pttl("migrated:{shop}") <= 3_600_000


def test_unacked_messages_stay_and_a_queue_without_a_record_here_is_left(migrate, old, old_client, channel):
    fill(old)
    assert migrate("--priorities", "keep").json["left"] == 5
    declare(channel, "shop")
    assert migrate("--priorities", "keep").json["moved"] == 5
    assert old_client.hlen("unacked") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_command_neither_loses_nor_doubles(migrate, old, old_client, redis_client, connect, monkeypatch, when):  # noqa: PLR0917
    killing = CommandKills(monkeypatch, when)
    at, killed = 0, True
    while killed:
        at += 1
        redis_client.flushdb()
        old_client.flushdb()
        kombu.Queue("shop", kombu.Exchange("shop"), routing_key="shop")(old).declare()
        declare(connect().channel(), "shop")
        fill(old)
        killed = killing.is_killed(lambda: migrate("--take-unacked", "--priorities", "invert"), at)
        assert migrate("--take-unacked", "--priorities", "invert").status == 0
        found = [redis_client.hget(key, "payload").partition(b"\n")[2] for key in redis_client.keys("message:*")]
        assert sorted(map(task_of, found)) == ["a0", "a9", "b0", "b9", "held", "later"], f"killed {when} call {at}"
    assert at > 15


def test_what_is_on_its_way_and_cannot_be_read_stays(migrate, old, old_client, channel):
    declare(channel, "shop")
    old_client.lpush("celery_redis_plus.moving:shop", b"0" * 32 + b" no message")
    publish(old, "shop", "a")
    ended = migrate()
    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 1, 1)
    assert old_client.llen("celery_redis_plus.moving:shop") == 1
    assert bodies(channel, 1) == ["a"]


def test_the_status_counts_what_is_on_its_way(migrate, old, old_client):
    old_client.lpush("celery_redis_plus.moving:shop", b"0" * 32 + b" {}")
    (status,) = migrate("--status").lines
    assert (status["moving"], status["left"]) == (1, 1)


def test_the_ids_of_a_killed_run_are_kept_for_days(migrate, old, channel, redis_client, monkeypatch):
    declare(channel, "shop")
    publish(old, "shop", "a")
    kills, at = CommandKills(monkeypatch, "after"), 0
    while not redis_client.exists("migrated:{shop}"):
        at += 1
        assert kills.is_killed(migrate, at)
    # The message is stored here, and still there.
    assert redis_client.pttl("migrated:{shop}") > 6 * 86_400_000


def task_of(body):
    return body.decode().strip('"')


def text_of(body, *, tag, **headers):
    """Return a message as kombu's list has it, or as producers in other languages write it."""
    properties = {"delivery_tag": tag, "priority": 0, "delivery_info": {"exchange": "shop", "routing_key": "shop"}}
    return json.dumps(
        {"body": json.dumps(body), "content-type": "application/json", "headers": headers, "properties": properties}
    )


def test_messages_with_one_delivery_tag_come_all_of_them(migrate, old, old_client, channel):
    declare(channel, "shop")
    for number in (0, 1, 2, 2, 3):
        old_client.lpush("shop", text_of(number, tag=0))

    assert migrate().json["ready"] == 5

    assert bodies(channel, 5) == [0, 1, 2, 2, 3]
    assert old_client.exists("shop", "celery_redis_plus.moving:shop") == 0


def test_of_one_text_that_stands_there_twice_a_worker_takes_one(migrate, old, old_client, channel, monkeypatch):
    declare(channel, "shop")
    old_client.lpush("shop", *[text_of(1, tag=0)] * 3)
    move = RemoteImporter._move_there  # noqa: SLF001 - what happens between its read and its move

    def take_first(self, queue, found, *arguments):
        if len(found) == 2:
            old_client.rpop("shop")
        return move(self, queue, found, *arguments)

    monkeypatch.setattr(RemoteImporter, "_move_there", take_first)
    assert migrate().json["ready"] == 2


def test_a_refused_run_leaves_messages_where_old_workers_find_them(migrate, old, old_client, channel):
    declare(channel, "shop")
    publish(old, "shop", "first")
    publish(old, "shop", *range(5), priority=2)

    assert migrate().status == 1

    assert old_client.llen("celery_redis_plus.moving:shop") == 0
    assert [old.basic_get("shop").decode() for _ in range(5)] == list(range(5))


def test_unreadable_messages_stay_in_their_list_and_the_others_come(migrate, old, old_client, channel):
    declare(channel, "shop")
    for number in range(3):
        old_client.lpush("shop", "no message", text_of(number, tag=number))

    ended = migrate()

    assert (ended.status, ended.json["ready"], ended.json["left"]) == (1, 3, 3)
    assert old_client.lrange("shop", 0, -1) == [b"no message"] * 3
    assert old_client.llen("celery_redis_plus.moving:shop") == 0
    assert bodies(channel, 3) == [0, 1, 2]


def test_unacked_messages_come_while_old_workers_go_on(migrate, old, old_client, channel, monkeypatch):
    declare(channel, "shop")
    publish(old, "shop", *range(3))
    for _ in range(3):
        old.basic_get("shop")
    original = CommandConnection.command

    def command(connection, *arguments):
        # An old worker takes and acks others at each moment.
        old_client.hset("unacked", "another", "1")
        old_client.hdel("unacked", "another")
        return original(connection, *arguments)

    monkeypatch.setattr(CommandConnection, "command", command)

    assert migrate("--take-unacked").json["unacked"] == 3

    assert old_client.hlen("unacked") == 0
    assert bodies(channel, 3) == [0, 1, 2]


def test_options_of_the_source_are_checked(cli, server):
    printed = cli("migrate", "--from-prefix", "shop:")
    assert (printed.status, "allowed with --from" in printed.err) == (2, True)
    printed = cli("migrate", "--reverse", "--from", server.url(1))
    assert (printed.status, "with --to for another database" in printed.err) == (2, True)
    printed = cli("migrate", "--from", "sqs://localhost")
    assert printed.status == 1
    assert "sqs" in printed.err


def test_the_source_has_a_prefix_of_its_own(migrate, server, channel):
    with kombu.Connection(server.url(1, scheme="redis"), transport_options={"global_keyprefix": "old:"}) as connection:
        kombu.Queue("shop", kombu.Exchange("shop"), routing_key="shop")(connection.default_channel).declare()
        publish(connection.default_channel, "shop", "a")
    declare(channel, "shop")

    assert migrate("--from-prefix", "old:").json["ready"] == 1
