"""Apps with different prefixes share a database and never meet, whatever their queues, keys and ids are called."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.cli.main import main
from tests.support.inbox import Inbox, declare, publish
from tests.support.services import end_services
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import redis

# The maintenance threads spread their retries by `random` while hypothesis draws.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

ODD = (
    "{",
    "}",
    "{}",
    "}:",
    ":",
    "*",
    "?",
    "[a]",
    "[^a]",
    "\\",
    "\n",
    "\r\n",
    "\x00",
    " ",
    "ż🥕",
    "%7D",
    "'\"",
    "..",
    "a",
    "\udcff",
)
odd_text = st.lists(st.sampled_from(ODD), min_size=1, max_size=6).map("".join)
names = odd_text | st.sampled_from(("q", "x" * 1024, "]]--", "' .. redis.call('FLUSHALL') .. '", "$(reboot)"))
#: Of two prefixes one is the start of the other, or a pattern that finds it.
NEIGHBOURS = (
    ("", "a:"), ("", "{a}"), ("a", "a:"), ("a", "a{"), ("a", "{a}"), ("a{", "a{a}"), ("a:", "a:b:"), ("*", "b:"), ("a*:", "ab:"),
    ("[ab]:", "a:"), ("?", "a"), ("\\*", "*"), ("a", "a\n"), ("n", "n\x00"), ("z", "zż"), ("\udcff", "\udcfe"), ("", "x" * 1024),
)  # fmt: skip
prefixes = st.sampled_from(NEIGHBOURS) | st.tuples(odd_text, odd_text).map(lambda two: (two[0], two[0] + two[1]))


class Evaluated:
    """Runs a program where it is unpickled."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __reduce__(self) -> Any:
        return eval, (self.program,)


class App:
    """An app with a prefix; its queue has a message in each state, with bodies that tell whose they are."""

    def __init__(self, url: str, prefix: str, name: str, odd: dict[str, str]) -> None:
        self.name = name
        self.queue, self.other, self.exchange, self.news = (
            odd["queue"],
            odd["queue"] + "2",
            odd["exchange"],
            odd["exchange"] + "n",
        )
        self.key, self.id = odd["key"], odd["id"]
        self.options = {"global_keyprefix": prefix, "event_log": True, "event_log_index": True}
        self.url = url
        self.connection = kombu.Connection(url, transport_options=self.options)

    def admin(self) -> BrokerAdmin:
        return BrokerAdmin(self.url, self.options)

    def fill(self) -> list[str]:
        """Leave dead, unacked, ready and delayed messages, duplicates and a broadcast; return the tags of all in the queue."""
        channel = self.connection.default_channel
        declare(channel, self.queue, self.other)
        producer = kombu.Producer(channel)
        exchange = kombu.Exchange(self.exchange, "direct", durable=True)
        kombu.Queue(self.queue, exchange, self.key, durable=True)(channel).declare()
        publish(channel, self.queue, f"{self.name} dead")
        channel.basic_get(self.queue).reject()
        publish(channel, self.queue, f"{self.name} unacked")
        commands, keys = channel.session.commands, channel.session.keys
        channel.session.commands.command("PING")
        claims = ClaimCommands(commands, keys, holder=self.id, visibility_timeout_s=3600)
        assert len(claims.claim([self.queue], 1, share=False).messages) == 1
        producer.publish(f"{self.name} routed", exchange=exchange, routing_key=self.key)
        for _ in range(2):
            publish(channel, self.queue, f"{self.name} once", headers={"x-deduplication-id": self.id})
        publish(channel, self.queue, f"{self.name} later", headers={"x-delay": 3_600_000})
        fanout = kombu.Exchange(self.news, "fanout", durable=True)
        inbox = Inbox(self.connection.channel(), kombu.Queue(self.news, fanout, durable=True))
        producer.publish(f"{self.name} news", exchange=fanout)
        assert inbox.drain(1) == [f"{self.name} news"]
        inbox.cancel()
        with self.admin() as admin:
            states = ("ready", "delayed", "unacked")
            tags = [one.tag for state in states for one in admin.list_messages(self.queue, state)]
            return tags + [letter.tag for letter in admin.dead_letters.all(self.queue)]

    def close(self) -> None:
        """Close it, and let the process forget it: from now on none but the others changes the server."""
        self.connection.close()
        end_services()


def everything_of(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    """Return each key's value and the time at which it expires."""
    keys = list(client.scan_iter())
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.dump(key)
            pipeline.execute_command("PEXPIRETIME", key)
        replies = pipeline.execute()
    return dict(zip(keys, zip(replies[::2], replies[1::2], strict=True), strict=True))


def standing(admin: BrokerAdmin, queue: str) -> tuple[int, int, int, int]:
    """Return how many messages of a queue are ready, delayed, unacked and acked."""
    counters = admin.counters(queue)
    return counters.ready, counters.delayed, counters.unacked, counters.acked


def operate(app: App, foreign: list[str]) -> None:
    """Let an operator look at everything and change everything of one app, also by ids of another one's messages."""
    queue, other = app.queue, app.other
    with app.admin() as admin:
        assert set(admin.queues()) >= {queue, other}
        assert {one.queue for one in admin.overview()} == set(admin.queues())
        assert standing(admin, queue) == (2, 1, 1, 0)
        for tag in (*foreign, app.id, "", "*", "\udcff"):
            assert admin.messages.find(tag) is None
            assert admin.messages.cancel(tag, queue) is False
            assert admin.messages.reschedule(tag, "+1", queue) is False
            assert admin.messages.move(tag, other, queue) is None
            assert admin.cancel(queue, [tag]) == []
            assert admin.stored(queue, tag) == ({}, {}, b"")
            assert admin.dead_letters.read(queue, [tag]) == []
            assert admin.dead_letters.delete(queue, [tag]) == 0
        assert list(admin.checker(repair=True).run()) == []
        admin.pause(queue, ascii(app.id))
        assert admin.paused(queue).reason == ascii(app.id)
        assert admin.resume(queue)
        assert set(admin.subscribers()) == {app.news}
        ready = [one.tag for one in admin.list_messages(queue, "ready")]
        assert len(ready) == 2
        assert admin.messages.move(ready[0], other, queue)
        (later,) = [one.tag for one in admin.scheduled()]
        assert admin.messages.reschedule(later, "+7200000")
        search = admin.search_dead_letters(queue, DeadLetterFilter())
        assert [admin.replay_page(page, to=other) for _, page in search.pages()] == [[True]]
        assert admin.cancel(queue, [ready[1]], dead_letter=True) == [ready[1]]
        assert admin.dead_letters.purge(queue) == 1


def consume(app: App) -> None:
    """Take all there is, and remove it all."""
    channel = app.connection.default_channel
    inbox = Inbox(channel, app.queue, app.other)
    got = set(inbox.drain(2))
    assert got == {f"{app.name} dead", f"{app.name} routed"}
    publish(channel, app.queue, f"{app.name} again")
    inbox.drain(3)
    inbox.cancel()
    assert channel.queue_purge(app.queue) == 1
    for queue in (app.queue, app.other):
        channel.queue_delete(queue)
    with app.admin() as admin:
        assert not {app.queue, app.other} & set(admin.queues())


def undisturbed(app: App) -> None:
    """See that the app has what it left."""
    inbox = Inbox(app.connection.default_channel, app.queue, app.other)
    assert set(inbox.drain(2)) == {f"{app.name} routed", f"{app.name} once"}
    with app.admin() as admin:
        # Acks leave a moment later.
        wait_until(lambda: standing(admin, app.queue) == (0, 1, 1, 2), 10)
        assert [letter.body for letter in admin.dead_letters.all(app.queue)] == [f"{app.name} dead".encode()]


def test_what_an_app_and_its_operator_do_changes_nothing_of_another_app(redis_client: Any, broker_url: str) -> None:
    # Shrinking a failure takes minutes, and the names are short.
    @settings(phases=(Phase.explicit, Phase.generate), max_examples=12, deadline=None, derandomize=True, database=None)
    @given(
        two=prefixes,
        turned=st.booleans(),
        odd=st.fixed_dictionaries({"queue": names, "exchange": names, "key": names, "id": names}),
    )
    def run(two: tuple[str, str], turned: bool, odd: dict[str, str]) -> None:
        redis_client.flushdb()
        theirs, ours = reversed(two) if turned else two
        other = App(broker_url, theirs, "other", odd)
        tags = other.fill()
        assert len(tags) == 5
        other.close()
        before = everything_of(redis_client)

        app = App(broker_url, ours, "own", odd)
        app.fill()
        operate(app, tags)
        consume(app)
        app.close()
        after, now_ms = everything_of(redis_client), time.time() * 1000
        changed = {key for key, left in before.items() if after.get(key) != left and not 0 < left[1] <= now_ms}
        assert not changed
        mine = ours.encode("utf-8", "surrogateescape")
        assert all(key.startswith(mine) for key in after.keys() - before.keys())

        other = App(broker_url, theirs, "other", odd)
        undisturbed(other)
        other.close()

    run()


def test_a_deduplication_id_stands_for_a_message_of_its_own_queue_only(redis_client: Any, broker_url: str) -> None:
    with kombu.Connection(broker_url) as connection:
        channel = connection.default_channel
        for queue, name in (("a}:x", "y"), ("a", "x}:y"), ("a", "x\udcff:y"), ("a", "x%7D:y")):
            declare(channel, queue)
            publish(channel, queue, "x", headers={"x-deduplication-id": name})
        assert channel.queue_sizes("a").ready == 3


def test_payloads_are_never_evaluated(
    redis_client: Any, broker_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "evaluated"
    program = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    bodies = [
        (pickle.dumps(Evaluated(program)), "application/x-python-serialize", "binary"),
        (f"!!python/object/apply:builtins.eval [{program!r}]".encode(), "application/x-yaml", "utf-8"),
        (program.encode(), "text/x-python", "utf-8"),
        (b"' .. redis.call('FLUSHALL') .. '", "application/json", "utf-8"),
    ]
    with kombu.Connection(broker_url) as connection, BrokerAdmin(broker_url) as admin:
        channel = connection.default_channel
        declare(channel, "q")
        for body, content_type, encoding in bodies:
            kombu.Producer(channel).publish(body, routing_key="q", content_type=content_type, content_encoding=encoding)
        tags = [one.tag for one in admin.list_messages("q", "ready")]
        assert [admin.stored("q", tag)[2] for tag in tags] == [body for body, _, _ in bodies]
        for tag in tags:
            assert main(["messages", "show", tag, "--url", broker_url]) == 0
        for _ in bodies:
            channel.basic_get("q").reject()
        wait_until(lambda: admin.dead_letters.count("q") == len(bodies), 10)
        for tag in tags:
            assert main(["dead-letters", "show", "q", tag, "--url", broker_url]) == 0
        assert main(["dead-letters", "replay", "q", "--all", "--url", broker_url]) == 0
        assert admin.counters("q").ready == len(bodies)
    assert not mark.exists()
    assert capfd.readouterr().out
