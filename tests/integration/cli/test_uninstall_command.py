"""`celery-redis-plus uninstall` on a real server."""

from __future__ import annotations

import pytest
from key_descriptions import DESCRIPTIONS

from celery_redis_plus.admin.removal import TYPES, WHOLE_NAMES
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

FOREIGN = {b"celery-task-meta-1": b"result", b"queues:of:others": b"1", b"audit:{us}x": b"1", b"other:{q}": b"1"}


def all_keys(redis_client):
    return {key if isinstance(key, bytes) else key.encode() for key in redis_client.keys("*")}


@pytest.mark.parametrize("prefix", ["", "app:"])
def test_all_keys_and_no_others_are_deleted(cli, connect, redis_client, prefix):
    before = all_keys(redis_client)
    connection = connect(global_keyprefix=prefix, event_log=True, event_log_index=True)
    channel = connection.channel()
    channel.exchange_declare("news", type="fanout")
    declare(channel, "q", "r", "events")
    channel.queue_declare("reader", arguments={"x-durable-subscriber": True})
    channel.queue_bind("reader", "news", "")
    publish(channel, "", "broadcast", exchange="news")
    publish(channel, "q", *range(30))
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(3)
    inbox.messages[0].reject()
    for key, value in FOREIGN.items():
        redis_client.set(key, value)
    # A name of ours, with something of another program.
    redis_client.set(f"{prefix}meta:{{theirs}}", b"1")
    # Names that are a kind of ours, and no more: Sidekiq's dead set is one.
    redis_client.zadd(f"{prefix}dead", {"1": 1})
    redis_client.hset(f"{prefix}meta", "1", "1")
    redis_client.xadd(f"{prefix}stream", {"1": "1"})
    theirs = {f"{prefix}{name}".encode() for name in ("meta:{theirs}", "dead", "meta", "stream")}
    at = ("--prefix", prefix) if prefix else ()
    refused = cli("uninstall", *at, "--yes")
    assert refused.status == 1
    assert "1 process(es) consume" in refused.err
    assert "Nothing was deleted" in refused.err
    counted = cli("uninstall", *at, "--dry-run", "--force", "--json").json
    assert counted["keys"]["message"] == 30
    assert counted["keys"]["stream"] == 1
    inbox.cancel()
    connection.close()
    wait_until(lambda: cli("uninstall", *at, "--dry-run").status == 0)
    done = cli("uninstall", *at, "--yes")
    assert done.status == 0
    assert "1 key(s) have names of ours, but hold something else: they stay" in done.err
    assert all_keys(redis_client) == before | FOREIGN.keys() | theirs
    assert cli("uninstall", *at, "--yes").out.endswith("0 key(s) are deleted\n")


def test_each_described_key_is_one_that_goes():
    keys = Keys("app:")
    for one in DESCRIPTIONS:
        if one.kind != "stream":
            assert (one.pattern, keys.kind(b"app:" + one.key)) == (one.pattern, one.kind)
    of_migrations = {"moving": "list", "taken": "zset"}
    assert {one.kind: one.type for one in DESCRIPTIONS} | of_migrations == TYPES
    assert {one.kind for one in DESCRIPTIONS if b"{" not in one.key and one.kind != "stream"} | {*of_migrations} == WHOLE_NAMES
    assert keys.stream_of(keys.fanout("X", "/0.").meta) == keys.fanout("X", "/0.").stream


def test_without_a_terminal_it_asks_for_yes(cli, channel):
    declare(channel, "q")
    refused = cli("uninstall")
    assert refused.status == 2
    assert "There is no terminal to ask on: confirm with --yes" in refused.err
    assert cli("queues", "--json").lines[0]["queue"] == "q"


@pytest.mark.parametrize("text", ['{"user": 7}', "a}:b", "}", "{", "x}:y:{z}", "plain"])
def test_ids_with_braces_go_as_well(cli, connect, redis_client, text):
    before = all_keys(redis_client)
    connection = connect(event_log=True, event_log_index=True)
    channel = connection.channel()
    declare(channel, "q")
    about = {"x-deduplication-id": text, "x-deduplication-ttl": 100_000, "id": f"task {text}", "task": "t"}
    publish(channel, "q", "x", headers=about)
    assert any(key.startswith(b"dedup:{q}:") for key in all_keys(redis_client))
    assert any(key.startswith(b"task_index:{q}:") for key in all_keys(redis_client))
    connection.close()
    assert cli("uninstall", "--yes").status == 0
    assert all_keys(redis_client) == before
