"""`docs/design/data.md` against a server: each key that a mixed run leaves or writes is described, with fields and writers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from key_descriptions import describe
from script_headers import written_kinds

import celery_redis_plus
from celery_redis_plus.scripts import script, script_names
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

WRITING = frozenset(
    ("HSET", "HDEL", "HINCRBY", "HSETNX", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "DEL", "UNLINK", "RENAME",
     "PEXPIRE", "PERSIST", "SET", "APPEND", "XADD", "XTRIM", "SADD", "SREM", "COPY", "ZUNIONSTORE", "INCR")
)  # fmt: skip


@contextmanager
def watching(client: redis.Redis) -> Iterator[list[tuple[str, str, str]]]:
    """Collect (script, command, key) of every write that a script makes meanwhile."""
    names = {script(name).sha.decode(): name for name in script_names()}
    seen: list[tuple[str, str, str]] = []
    with client.monitor() as monitor:
        yield seen
        client.echo("the end")
        running = ""
        for entry in monitor.listen():
            # No key of this run has a space.
            command, what, *_ = *entry["command"].split(" "), ""
            if command == "ECHO":
                return
            if command == "EVALSHA":
                running = names.get(what, "")
            elif entry["client_type"] == "lua" and command.upper() in WRITING and running:
                seen.append((running, command.upper(), what))


def types_of_keys(client: redis.Redis) -> dict[bytes, str]:
    return {key: kind.decode() for key in client.scan_iter(count=1000) if (kind := client.type(key)) != b"none"}


def assert_described(client: redis.Redis, found: dict[bytes, str]) -> None:
    for key, kind in found.items():
        one = describe(key)
        assert one is not None, f"{key!r} has no description"
        assert one.type == kind, key
        if one.fields and kind == "hash":
            fields = {re.sub(r"^(to|tag):.*", r"\1:NAME", field.decode()) for field in client.hkeys(key)}
            assert fields <= {*one.fields}, key


def mixed_run(connect: Any) -> Iterator[str]:
    """Publish, delay, consume, dead-letter, broadcast, limit, deduplicate, pause: with lifecycle events. Yield the steps."""
    connection = connect(event_log=True, event_log_index=True, visibility_timeout=3)
    channel = connection.channel()
    exchange, news = kombu.Exchange("e", durable=True), kombu.Exchange("news", "fanout")
    single = kombu.Queue("single", durable=True, queue_arguments={"x-single-active-consumer": True})
    dying = kombu.Queue("dying", durable=True, queue_arguments={"x-dead-letter-exchange": "nowhere"})
    narrow = {"x-max-length": 10, "x-max-length-bytes": 10_000, "x-rate-limit": 100, "x-retry-policy": "constant first=60000"}
    declare(channel, "narrow", arguments=narrow)
    channel.queue_declare("temporary", durable=False, auto_delete=True)
    inbox = Inbox(
        channel, kombu.Queue("q", exchange, routing_key="k", durable=True), kombu.Queue("r", news), single, dying, ack=False
    )
    ranked = kombu.Queue("q", exchange, durable=True, consumer_arguments={"x-priority": 5})
    other = Inbox(connect().channel(), ranked, prefetch=1)
    yield "declared"
    publish(channel, "q", 1, 2, 3, "x" * 1_100_000)
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    publish(channel, "q", "mortal", expiration=60)
    publish(channel, "q", "once", headers={"x-deduplication-id": "a"})
    publish(channel, "narrow", 1, 2, 3)
    publish(channel, "temporary", 1)
    publish(channel, "single", 1)
    publish(channel, "dying", 1)
    tracked = celery_redis_plus.publish("t", connection=connection, routing_key="narrow", track=True, ack_timeout=60)
    celery_redis_plus.broadcast("b", "news", connection=connection)
    yield "published"
    inbox.drain(3)
    other.pump(1)
    yield "claimed"
    for message, settle in zip(inbox.messages, ("ack", "reject", "requeue"), strict=False):
        getattr(message, settle)()
    inbox.rest()
    for message in inbox.messages[3:]:
        message.reject()
    narrow_inbox = Inbox(connect().channel(), kombu.Queue("narrow", durable=True, queue_arguments=narrow), ack=False)
    narrow_inbox.drain(4)
    narrow_inbox.messages[0].requeue()
    yield "settled"
    assert not tracked.wait(0)
    other.cancel()
    narrow_inbox.cancel()
    channel.queue_purge("narrow")
    yield "purged"


def test_every_key_of_a_mixed_run_is_on_the_page_with_its_type_and_fields(connect, redis_client):
    steps = []
    for step in mixed_run(connect):
        found = types_of_keys(redis_client)
        assert_described(redis_client, found)
        steps.append((step, {describe(key).pattern for key in found}))
    patterns = set().union(*(kinds for _, kinds in steps))
    assert {
        "meta:{Q}", "queue:{Q}", "delayed:{Q}", "messages_index:{Q}", "expiry:{Q}", "dead:{Q}", "message:{Q}:TAG",
        "consumers:{Q}", "consumer:{Q}:CONSUMER", "with_credit:{Q}", "producer:{Q}:PRODUCER", "dedup:{Q}:TEXT", "events:{Q}",
        "events_meta:{Q}", "event_index:{Q}:TAG", "binding:{X}", "/0.X", "fanout:{/0.X}", "subscribers:{/0.X}",
        "cursors:{/0.X}", "subscriber:{/0.X}", "queues", "queue_ids", "exchanges", "event_logs", "track:{ID}",
        "track_events:{ID}", "tracks",
    } <= patterns  # fmt: skip


def test_scripts_write_only_what_their_headers_say(connect, redis_client):
    with watching(redis_client) as writes:
        for _ in mixed_run(connect):
            pass
    assert {"publish", "claim", "declare", "register_consumer"} <= {name for name, _, _ in writes}
    for name, command, key in writes:
        one = describe(key.encode("latin-1"))
        assert one is not None, (name, command, key)
        assert one.kind in written_kinds(name), f"{name} writes {key} ({command}), and its header does not say so"


def test_an_empty_queue_has_exactly_the_keys_that_the_page_says(connect, redis_client):
    declare(connect().channel(), "q")
    found = types_of_keys(redis_client)

    # `epoch` comes with the first process that looks for it.
    assert {describe(key).pattern for key in found} - {"database_id"} == {"meta:{Q}", "queues", "queue_ids"}
    assert all(describe(key).of_empty_queue for key in found)


@pytest.mark.parametrize("name", ["}{", "%", "a:b", "x}:y", "news/0.x"])
def test_keys_of_queues_with_odd_names_are_described(connect, redis_client, name):
    channel = connect().channel()
    declare(channel, name)
    publish(channel, name, 1)
    publish(channel, name, 2, headers={"x-delay": 60_000})
    wait_until(lambda: redis_client.dbsize() > 5, timeout_s=5)

    assert_described(redis_client, types_of_keys(redis_client))
