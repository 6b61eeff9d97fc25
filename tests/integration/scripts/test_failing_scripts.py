"""A script that fails at any of its commands leaves every message in one place, after sweeps and claims alone.

Scripts are atomic and not rolled back: a key of another type, or a missing permission, ends one in its middle.
docs/design/0012-scripts.md has the rule that their order of writes follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import RedisError

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from tests.integration.scripts.test_headers import NAMES, READ_ONLY
from tests.integration.scripts.workshop import LARGE, Workshop
from tests.support.failing import FAILED_KEY, MESSAGE
from tests.support.invariants import violations

pytestmark = pytest.mark.same_everywhere

EVERYTHING = frozenset((b"dead1", b"dead2", b"held1", b"held2", b"ready1", b"ready2", b"ready3", b"mortal", b"later1", b"later2"))
WAITING = EVERYTHING - {b"held1", b"held2"}


@dataclass(frozen=True)
class Scenario:
    """One way to call a script."""

    act: Callable[[Workshop], Any]
    #: Bodies that the script removes for good: they may be there or not.
    ends: frozenset[bytes] = field(default=frozenset())
    #: Arguments of the queue `q`.
    arguments: dict[str, Any] = field(default_factory=dict)
    #: A message whose publisher got an error may stand there with the life of its staged body.
    staged: bool = False
    #: Bodies that go from our queues to kombu's list, or the other way: in one of the two places at least, in both at most.
    moves: frozenset[bytes] = field(default=frozenset())
    #: Bodies that are there, once or twice, when the caller has called again after the failure.
    retried: frozenset[bytes] = field(default=frozenset())
    #: What happens before.
    before: Callable[[Workshop], Any] = lambda _: None


def bodies(*names: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


def dying(shop: Workshop) -> None:
    """Have the held messages die towards a dead-letter exchange."""
    shop.settle("REJECT")


def claim_with_acks(shop: Workshop) -> None:
    """Claim one message; the acks of the held ones go with the claim."""
    claims = ClaimCommands(shop.commands, shop.keys, holder="holder", visibility_timeout_s=30, acknowledger=shop.acknowledger)
    for unacked in shop.holding(shop.held):
        shop.acknowledger.batch_ack(unacked)
    claims.claim(["q"], 1, share=False)


def replace(shop: Workshop, body: bytes) -> None:
    """Publish a message that takes the place of the one that waits under the same id."""
    deduplication = b"replace/0/5000/until-claimed 60000 * " + shop.q.dedup + b"one"
    keys = [*shop.q.publish, shop.q.producer + b"p"]
    arguments = (b"{}\n" + body, 255, "+1000", next(shop.numbers), 0, 900_000, "")
    limits = shop.client.hget(shop.q.meta, "limited")
    if limits is None:
        shop.run("publish", keys, *arguments, "", deduplication)
    else:
        keys = [*shop.q.state_keys, shop.q.waiting_publishers, *shop.q.living, shop.q.producer + b"p"]
        shop.run("publish_bounded", keys, *arguments, limits, "0 0 me ", "", deduplication)


def publish_batch(shop: Workshop, *ids: bytes) -> None:
    """Publish a message for each of the deduplication ids; an empty one is none."""
    keys = [shop.q.meta, shop.q.ready, shop.q.message, shop.q.wakeup, shop.q.producer + b"p"]
    arguments: list[Any] = []
    for number, name in enumerate(ids):
        deduplication = b"ttl 60000 * " + shop.q.dedup + name if name else b""
        arguments += (b"{}\nnew%d" % number, 255, deduplication, "")
    shop.run("publish_batch", keys, len(ids), 900_000, "", *arguments)


def take_from_kombu(shop: Workshop, eta: str = "0") -> None:
    shop.client.rpush("kombu", "new")
    keys = [*shop.q.publish, b"kombu", b"unacked_index"]
    shop.run("take_from_kombu", keys, b"new", b"", b"{}\nnew", 255, eta, "", "")


def store_once(shop: Workshop) -> None:
    arguments = ("its id", 10**15, b"{}\nnew", 255, "", "", 600_000)
    shop.run("store_once", [*shop.q.publish, shop.q.moved_in], *arguments)


def remove_stored(shop: Workshop) -> None:
    shop.run("remove_stored", [shop.q.dead, shop.q.message, shop.q.meta], shop.tag("dead"), "replayed", "d")


def change_shard(shop: Workshop) -> None:
    """Move what waits into another queue, as into that of another shard."""
    there = shop.keys.queue("d")
    while messages := shop.run("leave_shard", [*shop.q.state_keys, shop.q.leaving_shard, shop.q.leaving_message], 100, 1_000_000):
        arguments: list[Any] = []
        for tag, place, score, *fields in messages:
            if fields:
                arguments += (b"move " + tag, tag, place, score, len(fields), *fields)
        if arguments:
            shop.run("enter_shard", [*there.state_keys, there.moved_in], 10**15, 600_000, *arguments)
        tags = [message[0] for message in messages]
        shop.client.unlink(*[shop.q.leaving_message + tag for tag in tags])
        shop.client.hdel(shop.q.leaving_shard, *tags)


def store_migrated(shop: Workshop) -> None:
    shop.run("store_migrated", [*shop.q.publish, shop.q.migrated], 60_000, "its id", b"{}\nnew", 255, 0, "", "")


def give_to_kombu(shop: Workshop, place: str) -> None:
    tag = shop.tag(place)
    body = {"ready": b"ready1", "delayed": b"later1"}[place]
    due = b"%d" % int(shop.client.zscore(shop.q.delayed, tag)) if place == "delayed" else b""
    shop.run("give_to_kombu", [*shop.q.state_keys, b"kombu"], "kombu", tag, due, body)


def after(ms: int) -> Callable[[Workshop], None]:
    return lambda shop: shop.clock.advance(ms)


DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}
LIMITED = {"x-max-length": 50, "x-overflow": "reject-publish"}

SCENARIOS: dict[str, list[Scenario]] = {
    "ack": [Scenario(lambda shop: shop.settle("ACK"), bodies("held1", "held2"))],
    "reject": [
        Scenario(lambda shop: shop.settle("REJECT")),
        Scenario(lambda shop: shop.settle("REJECT"), arguments=DLX),
    ],
    "requeue": [
        Scenario(lambda shop: shop.settle("REQUEUE")),
        Scenario(lambda shop: shop.settle("REQUEUE"), arguments={"x-delayed-retry-min": 1000}),
        Scenario(lambda shop: shop.settle("REQUEUE"), arguments={"x-delivery-limit": 1}),
    ],
    "release": [Scenario(lambda shop: shop.settle("RELEASE_UNSEEN"))],
    "release_session": [
        Scenario(
            lambda shop: shop.run(
                "release_session",
                [
                    shop.q.ready,
                    shop.q.index,
                    shop.q.message,
                    shop.q.wakeup,
                    shop.q.expiry,
                    shop.q.schedule_wakeup,
                    shop.q.meta,
                    shop.q.delayed,
                ],
                "holder",
                "",
                100,
            )
        )
    ],
    "recover_sessions": [
        Scenario(lambda shop: shop.run("recover_sessions", shop.q.state_keys, "", 100, 5, 5, "holder")),
        Scenario(
            lambda shop: shop.run("recover_sessions", shop.q.state_keys, "", 100, 5, 5, "holder"),
            arguments={"x-delivery-limit": 1},
        ),
    ],
    "remove_consumers": [
        Scenario(
            lambda shop: shop.run("remove_consumers", shop.q.consumer_keys, "holder"),
            arguments={"x-single-active-consumer": True},
            before=lambda shop: shop.run("register_consumer", shop.q.consumer_keys, "holder.1", 0, 0, "tag", "t"),
        ),
    ],
    "extend_leases": [
        Scenario(
            lambda shop: shop.run(
                "extend_leases", [shop.q.index, shop.q.message, shop.q.meta], 30_000, 1, shop.held[0].tag, shop.held[0].claim
            )
        )
    ],
    "mark_begun": [Scenario(lambda shop: shop.run("mark_begun", [shop.q.message], shop.held[0].tag, shop.held[0].claim))],
    "claim": [
        Scenario(lambda shop: shop.claim()),
        Scenario(lambda shop: shop.claim(credit=2)),
        Scenario(lambda shop: shop.claim(), before=after(650_000)),
        Scenario(lambda shop: shop.claim(), arguments=LIMITED),
        Scenario(claim_with_acks, bodies("held1", "held2")),
    ],
    "publish": [
        Scenario(lambda shop: shop.publish(b"new")),
        Scenario(lambda shop: shop.publish(b"new", eta="+1000")),
        Scenario(lambda shop: shop.publish(b"new", life="+900000")),
        Scenario(lambda shop: shop.publish(b"x" * (LARGE + 1)), staged=True),
        Scenario(lambda shop: replace(shop, b"new"), bodies("old"), before=lambda shop: replace(shop, b"old")),
    ],
    "publish_ordinary": [Scenario(lambda shop: shop.publish(b"new", ordinary=True))],
    "publish_batch": [
        Scenario(lambda shop: publish_batch(shop, b"", b"")),
        Scenario(lambda shop: publish_batch(shop, b"one", b"two", b"")),
        Scenario(lambda shop: publish_batch(shop, b"old", b"one", b"one", b""), before=lambda shop: publish_batch(shop, b"old")),
    ],
    "publish_bounded": [
        Scenario(lambda shop: shop.publish(b"new"), arguments=LIMITED),
        Scenario(lambda shop: shop.publish(b"new", eta="+1000"), arguments=LIMITED),
        Scenario(
            lambda shop: shop.publish(b"new"),
            arguments={"x-max-length": 6, "x-overflow": "drop-head"},
        ),
        Scenario(lambda shop: replace(shop, b"new"), bodies("old"), arguments=LIMITED, before=lambda shop: replace(shop, b"old")),
    ],
    "sweep": [
        Scenario(lambda shop: shop.sweep(), before=after(20_000)),
        Scenario(lambda shop: shop.sweep(), before=after(31_000)),
        Scenario(lambda shop: shop.sweep(), before=after(31_000), arguments={"x-delivery-limit": 1}),
        Scenario(lambda shop: shop.sweep(), before=after(700_000)),
        Scenario(lambda shop: shop.sweep(), before=after(-3_600_000)),
        Scenario(
            lambda shop: shop.sweep(),
            before=lambda shop: shop.run(
                "purge",
                shop.q.purge,
            ),
            ends=bodies("ready1", "ready2", "ready3", "mortal", "later1", "later2"),
        ),
    ],
    "cancel": [
        Scenario(lambda shop: shop.messages.cancel("q", [shop.tag("ready"), shop.tag("delayed")]), bodies("ready1", "later1")),
        Scenario(lambda shop: shop.messages.cancel("q", [shop.tag("ready"), shop.tag("delayed")], dead_letter=True)),
    ],
    "dead_letter_one": [
        Scenario(lambda shop: shop.run("dead_letter_one", shop.q.state_keys, shop.tag("ready"), "timeout", 5)),
        Scenario(lambda shop: shop.run("dead_letter_one", shop.q.state_keys, shop.tag("delayed"), "timeout", 5)),
        Scenario(lambda shop: shop.run("dead_letter_one", shop.q.state_keys, shop.tag("index"), "timeout", 5)),
    ],
    "reschedule": [
        Scenario(lambda shop: shop.messages.reschedule("q", shop.tag("ready"), "+5000")),
        Scenario(lambda shop: shop.messages.reschedule("q", shop.tag("delayed"), "+5000")),
        Scenario(lambda shop: shop.messages.reschedule("q", shop.tag("delayed"), 0)),
        Scenario(lambda shop: shop.messages.reschedule("q", shop.tag("ready"), 0)),
        Scenario(lambda shop: shop.messages.prioritize("q", shop.tag("ready"), 9)),
        Scenario(lambda shop: shop.messages.prioritize("q", shop.tag("delayed"), 9)),
    ],
    "move_message": [
        Scenario(lambda shop: shop.messages.move("q", shop.tag("ready"), "d")),
        Scenario(lambda shop: shop.messages.move("q", shop.tag("ready", 3), "d")),
        Scenario(lambda shop: shop.messages.move("q", shop.tag("delayed"), "d")),
    ],
    "move_dead_letter": [
        Scenario(lambda shop: shop.dead.replay(shop.dead.page("q")[0])),
        Scenario(lambda shop: shop.dead.replay(shop.dead.page("q")[0], "d")),
        Scenario(lambda shop: shop.forward("q"), before=dying, arguments=DLX),
    ],
    "store_dead_letters": [
        Scenario(lambda shop: shop.dead.keep("q", {shop.tag("dlx_outbox"): ValueError("odd")}), before=dying, arguments=DLX)
    ],
    "delete_dead": [
        Scenario(lambda shop: shop.dead.delete("q", [shop.tag("dead")]), bodies("dead1")),
        Scenario(lambda shop: shop.dead.purge("q"), bodies("dead1", "dead2")),
    ],
    "empty_trash": [Scenario(lambda shop: shop.dead.purge("q"), bodies("dead1", "dead2"))],
    "purge": [Scenario(lambda shop: shop.queues.purge("q"), bodies("ready1", "ready2", "ready3", "mortal", "later1", "later2"))],
    "delete": [Scenario(lambda shop: (shop.queues.delete("q"), shop.declare("q")), EVERYTHING)],
    "take_from_kombu": [
        Scenario(take_from_kombu, moves=bodies("new")),
        Scenario(lambda shop: take_from_kombu(shop, eta="+1000"), moves=bodies("new"), arguments=LIMITED),
    ],
    "store_migrated": [Scenario(store_migrated, retried=bodies("new"))],
    "store_once": [Scenario(store_once)],
    "leave_shard": [Scenario(change_shard, WAITING, retried=WAITING)],
    "enter_shard": [Scenario(change_shard, WAITING, retried=WAITING)],
    "remove_stored": [Scenario(remove_stored, bodies("dead1"))],
    "give_to_kombu": [
        Scenario(lambda shop: give_to_kombu(shop, "ready"), moves=bodies("ready1")),
        Scenario(lambda shop: give_to_kombu(shop, "delayed"), moves=bodies("later1")),
        Scenario(lambda shop: give_to_kombu(shop, "ready"), moves=bodies("ready1"), arguments=LIMITED),
    ],
    "publish_dead": [
        Scenario(
            lambda shop: shop.run(
                "publish_dead",
                [*shop.q.state_keys, b"producer:{q}:p"],
                b"{}\nnew",
                255,
                0,
                1,
                0,
                900_000,
                "",
                "unroutable",
                5,
                "",
            )
        )
    ],
    "claim_restricted": [
        Scenario(
            lambda shop: shop.run("claim_restricted", shop.q.consumer_keys, 10, 30_000, "holder", 10**6, "", 10, 0, 5, 5, "w"),
            arguments={"x-max-unacked": 5},
        ),
    ],
    "register_consumer": [Scenario(lambda shop: shop.run("register_consumer", shop.q.consumer_keys, "me", 0, 0, "tag", "t"))],
    "deregister_consumer": [
        Scenario(
            lambda shop: shop.run("deregister_consumer", shop.q.consumer_keys, "me"),
            before=lambda shop: shop.run("register_consumer", shop.q.consumer_keys, "me", 0, 0, "tag", "t"),
        )
    ],
    "report_no_credit": [Scenario(lambda shop: shop.run("report_no_credit", shop.q.consumer_keys, "me"))],
    "pause": [
        Scenario(lambda shop: shop.pausing.pause("q", "why")),
        Scenario(lambda shop: shop.pausing.resume("q"), before=lambda shop: shop.pausing.pause("q", "why")),
    ],
    "replace_arguments": [
        Scenario(lambda shop: shop.queues.steer("q", QueueArguments(durable=True, arguments={"x-single-active-consumer": True})))
    ],
    "set_group": [
        Scenario(
            lambda shop: shop.run("set_group", [shop.q.meta], "g", '{"concurrency": 9}', 100),
            arguments={"x-group-concurrency": 3},
        )
    ],
    "set_limiter": [Scenario(lambda shop: shop.run("set_limiter", [shop.keys.limiter_rules], "a", 60_000, "1/s", 9))],
    "take_limiter": [Scenario(lambda shop: shop.run("take_limiter", [shop.keys.limiter_rules], "a:1/s", "x", 0))],
    "declare": [Scenario(lambda shop: shop.declare("new"))],
    "bind": [Scenario(lambda shop: shop.run("bind", [shop.keys.binding("e")], "bind", "a", "b"))],
}
#: They touch no message, and nothing that a message needs: counters, wakeups, lists, broadcasts, tracked deliveries.
NO_MESSAGES = {
    "finish_move", "write_policy", "hold_raise", "release_raise", "close_place",
    "record_error", "own_queue", "log_failed", "check_consumers", "tombstone_queues", "check_groups",
    "check_limiters", "check_messages",
    "check_queue",
    "commit_events", "increment_counters", "declare_exchange", "next_queue_id", "add_to_queue_set", "database_id",
    "heartbeat_fanout", "leave_wait_queue", "publish_fanout", "publish_fanout_bounded",
    "remove_expired_subscribers", "suspect_subscribers",
    "list_queue", "notify", "set_event_log", "subscribe_fanout", "extend_queue_ttl", "track", "track_overdue", "track_report",
    "unsubscribe_fanout", "notify_if_ready", "heartbeat_process", "replace_process", "end_event_log",
    # Moves times, in tests of applications only.
    "advance",
}  # fmt: skip
#: Arguments of queues with groups; all messages are of one group. Or the limiter that all messages have.
GROUPS = {
    "concurrency": {"x-group-concurrency": 3},
    "strict": {"x-group-concurrency": 3, "x-group-order": "strict"},
    "fair": {"x-fair": True},
    "both": {"x-fair": True, "x-group-concurrency": 3},
    "limiter": {"limiter": "a:concurrency=3"},
    "bucket": {"limiter": "a:1/s burst=4"},
}
#: Scripts that deal with the messages of one queue, and so with their groups.
OF_GROUPS = (
    *("ack", "reject", "requeue", "release", "release_session", "recover_sessions", "claim", "claim_restricted", "publish"),
    *("publish_bounded", "sweep", "cancel", "dead_letter_one", "reschedule", "move_message", "move_dead_letter", "purge"),
    *("delete", "leave_shard", "enter_shard", "give_to_kombu"),
)
CASES = [(name, number) for name, scenarios in SCENARIOS.items() for number in range(len(scenarios))]


def test_every_script_that_writes_has_a_scenario():
    assert SCENARIOS.keys() | NO_MESSAGES == set(NAMES) - READ_ONLY


def attempt(shop: Workshop, name: str, scenario: Scenario, at: int) -> bool:
    """Run the scenario with a failure at the `at`-th write; return whether it failed."""
    shop.commands.fails = (name, at)
    try:
        scenario.act(shop)
    except RedisError as error:
        assert MESSAGE.partition(" ")[2] in str(error), f"{name} at {at}"  # noqa: PT017 - it may fail, or swallow the error
    finally:
        shop.commands.fails = None
    return bool(shop.client.exists(FAILED_KEY))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_script_that_fails_at_any_write_strands_and_doubles_nothing(shop, name, number):
    fails_at_each_write(shop, name, number, {})


@pytest.mark.sample(15)
@pytest.mark.parametrize(
    "kind",
    ["both", "limiter", *(pytest.param(kind, marks=pytest.mark.weekly) for kind in GROUPS if kind not in {"both", "limiter"})],
)
@pytest.mark.parametrize(("name", "number"), [case for case in CASES if case[0] in OF_GROUPS])
def test_a_script_that_fails_at_any_write_leaves_the_groups_in_order(shop, name, number, kind):
    if "limiter" not in GROUPS[kind] and "drop-head" in SCENARIOS[name][number].arguments.values():
        pytest.skip("refused for a queue with groups")
    fails_at_each_write(shop, name, number, GROUPS[kind])


def fails_at_each_write(shop, name, number, of_groups):
    scenario = SCENARIOS[name][number]
    at, failed = 0, True
    while failed:
        at += 1
        one = shop()
        one.fill(**scenario.arguments, **of_groups)
        scenario.before(one)
        before = {body for body, count in one.found().items() if count} | scenario.ends
        gone = scenario.ends | scenario.moves
        failed = attempt(one, name, scenario, at)
        one.recover()
        found = one.found()
        where = f"{name}[{number}], failing at write {at}"
        for look in ("check_groups", "check_limiters"):
            assert one.run(look, [one.q.meta], 0, "", 100) == [b""], where
        wrong = violations(one.client, one.keys)
        assert [text for text in wrong if not (scenario.staged and "has a TTL" in text)] == [], where
        assert [body for body in before - gone if found[body] != 1] == [], where
        at_kombu = one.client.lrange("kombu", 0, -1)
        assert [body for body in scenario.moves if not 1 <= found[body] + at_kombu.count(body) <= 2] == [], where
        assert [body for body, count in found.items() if count > 1] == [], where
        if failed and scenario.retried:
            scenario.act(one)
            assert [body for body in scenario.retried if not one.found()[body]] == [], where
    assert at > 1 or name in {"extend_leases", "report_no_credit"}, "the script never failed: does the scenario call it?"
