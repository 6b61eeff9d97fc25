"""What one script call looks at is bounded, on a broker with 10,000 queues, 2,000 consumers, 5,000 bindings.

Queues have 15,000 messages in each place, more than a call may look at; 200,000 with `--weekly`. Each call is made
by a script that counts what it looks at and fails beyond the bound (`bounding.py`). The server's own time of the
longest call of each script is printed, never asserted: `pytest -s`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import RedisError, ResponseError

from celery_redis_plus import scripts
from celery_redis_plus.broker.consumers.registry import Consumer
from celery_redis_plus.broker.exchanges.routing import Binding
from celery_redis_plus.broker.queues.listing import search_headers
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.scripts import Script, script
from tests.integration.scripts import workshop
from tests.integration.scripts.bounding import MESSAGE, bounded
from tests.integration.scripts.test_failing_scripts import SCENARIOS, Scenario
from tests.integration.scripts.test_headers import NAMES
from tests.support.clock import scripts_read_a_key
from tests.support.filling import fill

#: What one call may look at: 10 to 20 ms of the server's time.
MOST = 10_000
MESSAGES, IN_OTHER_PLACES, QUEUES, CONSUMERS, BINDINGS = 200_000, 20_000, 10_000, 2_000, 5_000
#: More than a call may look at.
FEW = 15_000
#: They leave nothing for the others.
DESTRUCTIVE = ("purge", "delete_dead", "empty_trash", "delete")


class BoundedConnection(CommandConnection):
    """A connection whose scripts fail beyond the bound; it notes which were called."""

    fails = None
    called: set[str] = set()  # noqa: RUF012 - of all connections of the test

    def call_packed(self, what: Script, packed: bytes) -> Any:
        return super().call_packed(*self._bounded(what, packed))

    def send_packed_nowait(self, what: Script, packed: bytes, **options: Any) -> None:
        super().send_packed_nowait(*self._bounded(what, packed), **options)

    def _bounded(self, what: Script, packed: bytes) -> tuple[Script, bytes]:
        self.called.add(what.name)
        one = bounded(what, MOST)
        return one, packed.replace(what.sha, one.sha, 1)


#: Has the first ready messages expire.
EXPIRE = """
for _, tag in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)) do redis.call('HSET', KEYS[2] .. tag, 'expires', 1) end
"""


def consumer(number: int, queue: str = "q") -> Consumer:
    return Consumer(f"{number:012x}.1", queue, f"tag{number}")


def many_consumers(shop: workshop.Workshop) -> None:
    for number in range(CONSUMERS):
        shop.consumers.join(consumer(number))


def expired(shop: workshop.Workshop) -> None:
    """Have all ready messages expire, then claim: the first call of the first worker after a night."""
    shop.publish(b"mortal", life="+1000")
    tag = shop.tag("ready", -1)
    shop.client.zadd(shop.q.ready, {tag: 1})
    shop.client.eval(EXPIRE, 2, shop.q.ready, shop.q.message, MOST)
    shop.claim(credit=4)


def tags(shop: workshop.Workshop, place: str, count: int) -> list[bytes]:
    found: list[bytes] = shop.client.zrange(getattr(shop.q, place), 0, count - 1)
    return found


def many_subscribers(shop: workshop.Workshop) -> None:
    for number in range(CONSUMERS):
        shop.run("subscribe_fanout", shop.keys.fanout("f", "").registry(), f"s{number}", 60_000, "label", "")


def in_fanout(name: str, kinds: str, *arguments: Any) -> Callable[[workshop.Workshop], Any]:
    """Call a script with these keys of the exchange `f`, which has many subscribers."""

    def call(shop: workshop.Workshop) -> None:
        if not shop.client.exists(shop.keys.fanout("f", "").records):
            many_subscribers(shop)
        shop.run(name, [getattr(shop.keys.fanout("f", ""), kind) for kind in kinds.split()], *arguments)

    return call


def publish_fanout_bounded(shop: workshop.Workshop) -> None:
    of = shop.keys.fanout("f", "")
    shop.client.hset(shop.keys.exchanges, "f", "record")
    shop.client.hset(of.meta, "limited", "- - 1000000 reject -")
    keys = [of.stream, of.meta, of.producer + b"p", of.cursors, of.subscribers, of.records, of.waiting_publishers]
    arguments = (b"body", "", "p.1", 1000, 1, 0, 900_000, 0, 1, "- - 1000000 reject -", "0 0 me ", "f", "record")
    shop.run("publish_fanout_bounded", [*keys, shop.keys.exchanges], *arguments)


def events(shop: workshop.Workshop) -> None:
    with shop.client.pipeline() as pipeline:
        pipeline.delete(shop.q.events)
        for number in range(1, MOST + 1):
            pipeline.xadd(shop.q.events, {"v": f"acked\t{number}"}, id=f"1-{number}")
        for number in range(CONSUMERS // 10):
            pipeline.hset(shop.q.events_readers, f"reader{number}", f"1-{MOST} 0 0 ")
        pipeline.execute()
    shop.run("commit_events", [shop.q.events, shop.q.events_readers], "reader1", f"1-{MOST - 1}", 0, 1, "")


def end_event_log(shop: workshop.Workshop) -> None:
    events(shop)
    shop.queues.end_event_log("q")


def processes(shop: workshop.Workshop) -> None:
    for number in range(CONSUMERS):
        shop.run("heartbeat_process", shop.keys.processes, f"p{number}", "record", 2, 5000, "", 1000)


def track(shop: workshop.Workshop) -> None:
    recipients = [f"queue {number}" for number in range(500)]
    shop.run("track", shop.keys.track("ab"), 1000, 1000, "[]", "", *recipients)
    shop.clock.advance(2000)
    shop.run("track_overdue", shop.keys.track("ab")[:1], "me", 1000)


#: Calls of scripts that touch no message, and calls of others as large brokers make them.
CALLS: dict[str, Callable[[workshop.Workshop], Any]] = {
    "claim": expired,
    "register_consumer": many_consumers,
    "check_consumers": lambda shop: shop.consumers.check_listed([consumer(number) for number in range(50)]),
    "list_consumers": lambda shop: shop.consumers.list("q"),
    "count_consumers": lambda shop: shop.queues.consumer_count("q"),
    "deregister_consumer": lambda shop: shop.consumers.leave("q", consumer(0).id),
    "recover_sessions": lambda shop: shop.run(
        "recover_sessions", shop.q.state_keys, "", 500, 5, 5, *(f"{number:012x}" for number in range(20))
    ),
    "remove_consumers": lambda shop: shop.run(
        "remove_consumers", shop.q.consumer_keys, *(f"{number:012x}" for number in range(20))
    ),
    "release_session": lambda shop: shop.run(
        "release_session",
        [
            shop.q.ready, shop.q.index, shop.q.message, shop.q.wakeup, shop.q.expiry, shop.q.schedule_wakeup, shop.q.meta,
            shop.q.delayed,
        ],
        "nobody", "", 500,
    ),
    "bind": lambda shop: (
        [shop.bindings.bind("e", Binding(f"q{number}", "k")) for number in range(BINDINGS)],
        shop.bindings.unbind_queues(["q7"]),
        shop.bindings.delete("e"),
    ),
    "list_overdue": lambda shop: (
        shop.client.zadd(shop.keys.queues, {f"t{number}": 1 for number in range(QUEUES)}),
        shop.queues.registry.overdue(),
    ),
    "tombstone_queues": lambda shop: (
        shop.client.zadd(shop.keys.queues, {f"t{number}": -1 for number in range(QUEUES)}),
        shop.queues.registry.bury("gone"),
    ),
    "extend_queue_ttl": lambda shop: shop.queues.touch("q"),
    "find_message": lambda shop: shop.messages.find("q", shop.tag("ready", FEW // 2)),
    "list_messages": lambda shop: shop.dead.page("q"),
    "explain_message": lambda shop: shop.run(
        "explain_message",
        [
            *(getattr(shop.q, kind) for kind in ("meta", "ready", "delayed", "index", "message", "dlx_outbox", "dead")),
            *shop.q.living,
        ],
        shop.tag("ready", FEW // 2), 1, "claim", "id",
    ),
    "search_messages": lambda shop: [*search_headers(shop.commands, shop.keys, "q", ("ready", "unacked", "dead"), "nobody")],
    "queue_overview": lambda shop: shop.run(
        "queue_overview",
        [
            *(getattr(shop.q, kind) for kind in ("meta", "ready", "delayed", "index", "message", "dlx_outbox", "dead")),
            *shop.q.living,
        ],
    ),
    "check_messages": lambda shop: shop.run("check_messages", shop.q.state_keys, 1, 0, 30_000, *tags(shop, "ready", 100)),
    "check_groups": lambda shop: shop.run("check_groups", [shop.q.meta], 1, "", 100),
    "list_groups": lambda shop: shop.run("list_groups", [shop.q.meta], "", 200),
    "set_group": lambda shop: shop.run("set_group", [shop.q.meta], "g0", '{"paused": true}', 100),
    "check_limiters": lambda shop: shop.run("check_limiters", [shop.q.meta], 1, "", 100),
    "list_limiters": lambda shop: shop.run("list_limiters", [shop.keys.limiters], 0, 100),
    "set_limiter": lambda shop: shop.run("set_limiter", [shop.keys.limiter_rules], "a", 60_000, "1/s", 9),
    "take_limiter": lambda shop: shop.run("take_limiter", [shop.keys.limiter_rules], "a:1/s", "x", 0),
    "check_queue": lambda shop: shop.run(
        "check_queue",
        [
            getattr(shop.q, kind)
            for kind in (
                "meta", "wakeup", "schedule_wakeup", "ready", "consumers", "delayed", "index", "expiry", "dlx_outbox", "dead",
                "trash",
            )
        ] + [*shop.q.living[1:]],
        1, 60_000,
    ),
    "check_rights": lambda shop: shop.run("check_rights", [shop.keys.queues], '[["ZADD", "", "1", "a"]]'),
    "record_error": lambda shop: shop.run(
        "record_error", [shop.q.message], *(part for tag in tags(shop, "index", 500) for part in (tag, 1, "error"))
    ),
    "notify": lambda shop: shop.run("notify", [f"wakeup:{{{number}}}" for number in range(500)], 1000),
    "commit_events": events,
    "end_event_log": end_event_log,
    "heartbeat_process": processes,
    "track": track,
    "track_overdue": track,
    "heartbeat_fanout": in_fanout(
        "heartbeat_fanout", "stream meta subscribers cursors records waiting_publishers", 0,
        *(part for number in range(50) for part in (f"s{number}", 60_000, "0-0", 0, "label", "", "0,0,0")),
    ),
    "publish_fanout_bounded": publish_fanout_bounded,
    "list_subscribers": in_fanout("list_subscribers", "stream meta subscribers records"),
    "suspect_subscribers": in_fanout(
        "suspect_subscribers", "stream meta subscribers cursors records waiting_publishers", "", 500, "process"
    ),
    "unsubscribe_fanout": in_fanout("unsubscribe_fanout", "subscribers cursors records", "s1", "0-0", 0, "", 0),
    "remove_expired_subscribers": lambda shop: (
        shop.clock.advance(120_000),
        in_fanout("remove_expired_subscribers", "stream meta subscribers cursors records dead", 0, 10, 60_000, "", 0)(shop),
        shop.clock.advance(1000),
        in_fanout("remove_expired_subscribers", "stream meta subscribers cursors records dead", 0, 10, 60_000, "", 0)(shop),
    ),
}  # fmt: skip
#: For tests of applications only: without a bound.
NOT_CALLED = {"advance"}


def has_a_loop(name: str) -> bool:
    """Return whether a script, without its includes, repeats anything: one that does not runs a fixed number of commands."""
    source = re.sub(r"--.*", "", scripts._read(f"{name}.lua"))  # noqa: SLF001 - its text, before the includes
    return re.search(r"\b(for|while|repeat)\b", source) is not None


def test_every_script_is_called_on_a_large_broker_or_runs_a_fixed_number_of_commands():
    assert {name for name in NAMES if has_a_loop(name)} <= SCENARIOS.keys() | CALLS.keys() | NOT_CALLED
    assert NOT_CALLED.isdisjoint(SCENARIOS.keys() | CALLS.keys())


@pytest.fixture
def make(redis_client, monkeypatch, weekly):
    monkeypatch.setattr(workshop, "FailingConnection", BoundedConnection)
    for module in (sys.modules["celery_redis_plus.stored_message"], workshop):
        monkeypatch.setattr(module, "LARGE_BODY", workshop.LARGE, raising=False)
    opened = []

    def shop(**arguments: Any) -> workshop.Workshop:
        one = workshop.Workshop(redis_client)
        opened.append(one)
        one.fill(**arguments)
        for place in (one.q.delayed, one.q.index, one.q.dead):
            if redis_client.exists(place):
                fill(redis_client, one.q, place, IN_OTHER_PLACES if weekly else FEW)
        fill(redis_client, one.q, one.q.ready, MESSAGES if weekly else FEW)
        return one

    with scripts_read_a_key():
        yield shop
    for one in opened:
        one.commands.close()


def by_arguments() -> dict[str, list[tuple[str, Scenario]]]:
    found = defaultdict(list)
    for name, scenarios in SCENARIOS.items():
        for scenario in scenarios:
            found[str(scenario.arguments)].append((name, scenario))
    return found


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("arguments", by_arguments())
def test_a_call_looks_at_a_bounded_number_of_entries(make, redis_client, arguments):
    cases = sorted(by_arguments()[arguments], key=lambda case: DESTRUCTIVE.index(case[0]) if case[0] in DESTRUCTIVE else -1)
    shop = make(**cases[0][1].arguments)
    redis_client.config_set("slowlog-max-len", 10_000)
    redis_client.config_set("slowlog-log-slower-than", 1_000)
    redis_client.slowlog_reset()
    over = []
    for name, call in CALLS.items() if arguments == "{}" else ():
        try:
            call(shop)
        except ResponseError as error:
            assert MESSAGE in str(error), name  # noqa: PT017 - all calls are made, whatever one finds
            over.append(str(error))
        assert name in BoundedConnection.called
    for _, scenario in cases:
        try:
            run(shop, scenario)
        except (RedisError, ValueError, IndexError) as error:
            # They were written for a queue with a few messages: whether they do what they should is another test's matter.
            over += [str(error)] if MESSAGE in str(error) else []
    names = {bounded(script(name), MOST).sha: name for name in NAMES}
    longest: dict[str, int] = defaultdict(int)
    for entry in redis_client.slowlog_get(10_000):
        command, sha, *_ = [*entry["command"].split(), b""]
        if command.upper() == b"EVALSHA" and sha in names:
            longest[names[sha]] = max(longest[names[sha]], entry["duration"])
    print(f"{arguments}: longest calls in ms, while they are counted:", {name: us / 1000 for name, us in longest.items()})  # noqa: T201
    assert not over


def run(shop: workshop.Workshop, scenario: Scenario) -> None:
    shop.held = shop.claim(credit=2)
    scenario.before(shop)
    scenario.act(shop)


def test_a_walk_over_all_messages_is_found(redis_client):
    """The first claim after a night, as it was: a call that goes on until it has looked at all."""
    source = scripts.compose(
        "#!lua\nfor _, tag in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('EXISTS', tag) end\nreturn 1\n"
    )
    redis_client.zadd("queue:{q}", {f"{number}": number for number in range(MOST)})
    walk = bounded(Script.of("walk", source), MOST)
    with pytest.raises(Exception, match=MESSAGE):
        redis_client.eval(walk.source, 1, "queue:{q}")
