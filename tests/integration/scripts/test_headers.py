"""Each script says in its header what it takes; what the package passes is compared with that."""

from __future__ import annotations

import re
from importlib import resources

from celery_redis_plus import scripts
from tests.support.inbox import Inbox, publish

LUA = resources.files("celery_redis_plus.lua")
NAMES = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))
#: These may be refused when the server's memory is full: they add.
MAY_BE_REFUSED = {
    "publish",
    "publish_ordinary",
    "publish_batch",
    "publish_dead",
    "publish_bounded",
    "track",
    "publish_fanout",
    "publish_fanout_bounded",
    "take_from_kombu",
    "give_to_kombu",
    "store_migrated",
    "store_once",
}
READ_ONLY = {
    "count_consumers", "counters", "list_consumers", "list_messages", "list_overdue", "list_subscribers", "find_message",
    "queue_overview", "check_rights", "search_messages",
    "explain_message", "list_groups", "list_limiters",
}  # fmt: skip


def source(name):
    return LUA.joinpath(f"{name}.lua").read_text(encoding="utf-8")


def declared_keys(name):
    """Return (how many keys at least, how many at most or None, by how many it grows)."""
    header = re.search(r"^-- KEYS  (.*?)(?=^-- (?:ARGV|Returns))", source(name), re.MULTILINE | re.DOTALL)
    assert header, f"{name} has no line KEYS"
    text = header.group(1)
    if text.startswith("per "):
        # What comes once, after the keys of the queues, may be left out.
        text, _, once = text.partition("then")
        if once:
            return text.count("("), None, 1
        width = len(re.findall(r"\((?:prefix of a )?(?:zset|hash)(?:, read)?\)", text))
        return width, None, width
    numbers = [int(number) for number in re.findall(r"(?:^|\s|\[)(\d+)(?=\s)", text)]
    optional = len(re.findall(r"\[\d+", text))
    if ".." in text:
        return int(re.search(r"(\d+)\.\.", text).group(1)), None, 1
    assert numbers == list(range(1, len(numbers) + 1)), f"{name}: {numbers}"
    return len(numbers) - optional, len(numbers), 1


def test_every_script_has_its_flags():
    def flags(name):
        return "" if name in MAY_BE_REFUSED else " flags=no-writes" if name in READ_ONLY else " flags=allow-oom"

    assert [name for name in NAMES if source(name).partition("\n")[0] != "#!lua" + flags(name)] == []


def test_every_script_has_purpose_keys_arguments_result_and_bound():
    def lacks(name):
        lines = source(name).splitlines()
        header = "\n".join(line for line in lines if line.startswith("-- "))
        parts = [part for part in ("-- KEYS  ", "-- ARGV  ", "-- Returns ", "-- Bound: ") if part not in header]
        return parts if lines[1].startswith("-- ") else ["its purpose", *parts]

    assert {name: lacks(name) for name in NAMES if lacks(name)} == {}
    for name in NAMES:
        declared_keys(name)


def test_time_is_read_by_one_include_only():
    assert [name for name in NAMES if "TIME" in re.sub(r"--.*", "", source(name))] == []


def test_what_is_passed_agrees_with_the_headers(connect, redis_client, monkeypatch):
    """A whole life of messages, and every call that it makes."""
    from celery_redis_plus.connection.command_connection import CommandConnection

    calls: dict[str, set[int]] = {}

    def spy(method):
        original = getattr(CommandConnection, method)

        def wrapper(self, what, packed, **options):
            _, _, evalsha, _, _, _, key_count, *_ = packed.split(b"\r\n")
            assert evalsha == b"EVALSHA"
            calls.setdefault(what.name, set()).add(int(key_count))
            return original(self, what, packed, **options)

        monkeypatch.setattr(CommandConnection, method, wrapper)

    spy("call_packed")
    spy("send_packed_nowait")
    import kombu

    channel = connect(visibility_timeout=3).channel()
    exchange, news = kombu.Exchange("e", durable=True), kombu.Exchange("news", "fanout")
    queues = [kombu.Queue("q", exchange, routing_key="k", durable=True), kombu.Queue("r", news, auto_delete=True), "s"]
    inbox = Inbox(channel, *queues, ack=False)
    publish(channel, "q", 1, 2, 3, "x" * 1_100_000)
    publish(channel, "q", "later", headers={"x-delay": 100})
    kombu.Producer(channel, news).publish("x")
    inbox.drain(6)
    for message, settle in zip(inbox.messages, ("ack", "requeue", "reject", "ack", "ack", "ack"), strict=True):
        getattr(message, settle)()
    inbox.rest()
    assert channel.fanout_subscribers("news")
    assert channel.fanout_deaths("news") == []
    channel.queue_purge("q")
    channel.queue_unbind("q", "e", "k")
    channel.close()
    connect(visibility_timeout=3).default_channel.queue_delete("q")
    assert {
        "publish_ordinary",
        "publish_fanout",
        "subscribe_fanout",
        "heartbeat_fanout",
        "unsubscribe_fanout",
        "list_subscribers",
        "remove_expired_subscribers",
        "claim",
        "ack",
        "requeue",
        "reject",
        "sweep",
        "declare",
        "list_queue",
        "bind",
        "purge",
        "delete",
    } <= set(calls)
    # The maintenance thread goes on.
    for name, counts in dict(calls).items():
        least, most, step = declared_keys(name)
        for count in counts:
            assert count >= least, name
            assert most is None or count <= most, name
            assert step == 1 or count % step == 0, name


def test_every_script_compiles_on_the_server(redis_client):
    for name in NAMES:
        assert redis_client.script_load(scripts.script(name).source).encode() == scripts.script(name).sha, name
