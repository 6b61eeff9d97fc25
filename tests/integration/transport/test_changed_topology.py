"""What was declared is changed by others: who knew the old state sends the next message where a new process would, or raises.

Each change is a row of `CHANGES`, each way to send a row of `WAYS`. Every change is tried with two of the eight ways, so that one
kind of change meets all of them over the four types of exchange; by `--weekly` each with all. The new process is the oracle: a
connection that is opened after the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import kombu
import pytest

from celery_redis_plus.errors import CeleryRedisPlusError
from tests.support.connection_kills import lose_connection
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox
from tests.support.stored import UNDELIVERED
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

EXCHANGE, KEY = "x", "a.b"
#: The queue whose dead letters go to the exchange.
SOURCE = "source"
QUEUES = {"one", "two"}
#: Longer than `SMALL` allows.
PADDING = "." * 40
SMALL = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
LARGE = {"x-max-length-bytes": 10**6, "x-overflow": "reject-publish"}
#: Exchange type -> how a queue is bound so that it gets messages with `KEY`.
MATCHING: dict[str, tuple[str, dict[str, Any]]] = {
    "direct": (KEY, {}),
    "topic": ("a.#", {}),
    "headers": ("", {"x-match": "any", "kind": "k"}),
    "fanout": ("", {}),
}


@dataclass(frozen=True)
class Topology:
    """What is declared: exchange -> (type, arguments), queue -> arguments, and which queue is bound to which exchange."""

    exchanges: Mapping[str, tuple[str, Mapping[str, Any]]]
    queues: Mapping[str, Mapping[str, Any]]
    bindings: tuple[tuple[str, str], ...]

    def declare(self, channel: Any) -> None:
        for name, (kind, arguments) in self.exchanges.items():
            channel.exchange_declare(name, kind, durable=True, arguments=dict(arguments))
        for name, arguments in self.queues.items():
            channel.queue_declare(name, durable=True, arguments=dict(arguments))
        for exchange, queue in self.bindings:
            key, arguments = MATCHING[self.exchanges[exchange][0]]
            channel.queue_bind(queue, exchange, key, arguments)


def topology(kind: str = "direct", *bound: str, limits: Mapping[str, Any] = {}, **arguments: Any) -> Topology:
    """Return one exchange of a type with its arguments, and queues that are bound to it; the others are not."""
    queues: dict[str, Mapping[str, Any]] = {"one": limits, "two": {}}
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return Topology({EXCHANGE: (kind, given)}, queues, tuple((EXCHANGE, name) for name in bound))


def with_alternate(name: str | None, kind: str = "fanout", main: str = "direct") -> Topology:
    """Return an exchange that takes nothing, and what its alternate exchange is; each of those has a queue of its own."""
    arguments = {} if name is None else {"alternate-exchange": name}
    others = {"spare": (kind, {}), "other": ("topic", {})}
    bindings = (("spare", "one"), ("other", "two"))
    return Topology({EXCHANGE: (main, arguments), **others}, {"one": {}, "two": {}}, bindings)


@dataclass(frozen=True)
class Change:
    """A change from one topology to another."""

    before: Topology
    after: Topology
    #: What stands in both is deleted and declared again as well.
    anew: bool = False
    #: The server loses everything first.
    flush: bool = False

    def make(self, channel: Any, redis_client: Any) -> None:
        before, after = self.before, self.after
        if self.flush:
            redis_client.flushdb()
        for exchange, queue in before.bindings if not self.flush else ():
            if (exchange, queue) not in after.bindings and exchange in after.exchanges:
                key, arguments = MATCHING[before.exchanges[exchange][0]]
                channel.queue_unbind(queue, exchange, key, arguments)
        for name, declared in before.exchanges.items() if not self.flush else ():
            if self.anew or after.exchanges.get(name) != declared:
                channel.exchange_delete(name)
        for name, arguments in before.queues.items() if not self.flush else ():
            if self.anew or after.queues.get(name) != arguments:
                channel.queue_delete(name)
        after.declare(channel)


TYPES = tuple(MATCHING)
ONE = {kind: topology(kind, "one") for kind in TYPES}
TWO = {kind: topology(kind, "two") for kind in TYPES}
CHANGES: dict[str, Change] = {
    **{f"{old} exchange is now {new}": Change(ONE[old], TWO[new]) for old in TYPES for new in TYPES if old != new},
    **{f"queue unbound from {kind}, another one bound": Change(ONE[kind], TWO[kind]) for kind in TYPES},
    **{f"queue unbound from {kind}": Change(ONE[kind], topology(kind)) for kind in TYPES},
    **{f"all deleted and declared again, {kind}": Change(ONE[kind], ONE[kind], anew=True) for kind in TYPES},
    **{f"all lost by the server, {kind}": Change(ONE[kind], ONE[kind], flush=True) for kind in TYPES},
    **{f"{kind} exchange deleted": Change(ONE[kind], replace(ONE[kind], exchanges={}, bindings=())) for kind in TYPES},
    "queue with other limits": Change(ONE["topic"], topology("topic", "one", limits=SMALL)),
    "queue without limits": Change(topology("topic", "one", limits=SMALL), ONE["topic"]),
    "queue with a cap of priorities": Change(ONE["direct"], topology("direct", "one", limits={"x-max-priority": 2})),
    "queue deleted": Change(ONE["direct"], replace(ONE["direct"], queues={"two": {}}, bindings=())),
    "smaller limits of broadcasts": Change(
        replace(ONE["fanout"], exchanges={EXCHANGE: ("fanout", LARGE)}),
        replace(ONE["fanout"], exchanges={EXCHANGE: ("fanout", SMALL)}),
    ),
    "broadcasts with limits": Change(ONE["fanout"], replace(ONE["fanout"], exchanges={EXCHANGE: ("fanout", SMALL)})),
    "broadcasts without limits": Change(replace(ONE["fanout"], exchanges={EXCHANGE: ("fanout", SMALL)}), ONE["fanout"]),
    "alternate exchange added": Change(with_alternate(None), with_alternate("spare")),
    "alternate exchange is another one": Change(with_alternate("spare"), with_alternate("other")),
    "alternate exchange removed": Change(with_alternate("spare"), with_alternate(None)),
    "alternate exchange of another type": Change(with_alternate("spare", "fanout"), with_alternate("spare", "topic")),
    "alternate exchange added to a fanout": Change(with_alternate(None, main="fanout"), with_alternate("spare", main="fanout")),
    "alternate exchange of a fanout removed": Change(with_alternate("other", main="fanout"), with_alternate(None, main="fanout")),
}


# -- who sends ------------------------------------------------------------------------------------------------------------


def plain(connection: Any, body: str, **options: Any) -> None:
    message = {"exchange": EXCHANGE, "routing_key": KEY, "headers": {"kind": "k"}, **options}
    kombu.Producer(connection.default_channel).publish(body, **message)


def mandatory(connection: Any, body: str) -> None:
    plain(connection, body, mandatory=True)


def with_priority(connection: Any, body: str) -> None:
    """Not by the script for ordinary messages."""
    plain(connection, body, priority=5, expiration=60)


def large(connection: Any, body: str) -> None:
    """Beside the scripts."""
    plain(connection, body + PADDING * 30_000)


def default_exchange(connection: Any, body: str) -> None:
    plain(connection, body, exchange="", routing_key="one")


def batch(connection: Any, body: str) -> None:
    made = connection.default_channel.create_publish_batch(10)
    for exchange, key in (("", "one"), (EXCHANGE, KEY)):
        message = connection.default_channel.prepare_message(
            body,
            headers={"kind": "k"},
            properties={"delivery_tag": exchange},
            content_type="text/plain",
            content_encoding="utf-8",
        )
        made.publish(message, exchange=exchange, routing_key=key)
    made.flush()


def retry(connection: Any, body: str) -> None:
    """The connection is lost, as the publisher finds out."""
    lose_connection(connection)
    plain(connection, body, retry=True, retry_policy={"max_retries": 3, "interval_start": 0})


def dead_letter(connection: Any, body: str) -> None:
    channel = connection.default_channel
    kombu.Producer(channel).publish(body, routing_key=SOURCE, headers={"kind": "k"})
    message = channel.basic_get(SOURCE)
    assert message.payload == body
    message.reject()


@dataclass(frozen=True)
class Way:
    """A way to send."""

    send: Callable[[Any, str], None]
    #: How the oracle sends.
    oracle: Callable[[Any, str], None] = plain
    #: It is no publish that a full queue could refuse.
    passes_limits: bool = False


WAYS: dict[str, Way] = {
    "plain": Way(plain),
    "mandatory": Way(mandatory, mandatory),
    "with a priority": Way(with_priority, with_priority),
    "large body": Way(large),
    "default exchange": Way(default_exchange, default_exchange),
    "batch": Way(batch, batch),
    "retry": Way(retry),
    "dead letter": Way(dead_letter, passes_limits=True),
}


@dataclass
class World:
    """A broker whose topology changes, and who looks where messages arrive."""

    connect: Callable[..., kombu.Connection]
    inboxes: list[Inbox] = field(default_factory=list)
    #: Looks where messages arrived; opened after the topology has changed.
    observer: kombu.Connection | None = None
    #: Queues without a consumer.
    unheard: set[str] = field(default_factory=set)

    def listen(self, topology: Topology) -> None:
        """Consume all queues, as a new process does that declares them."""
        self.observer = self.connect()
        channel = self.connect().channel()
        topology.declare(channel)
        self.inboxes = [Inbox(channel, *[kombu.Queue(name, no_declare=True) for name in topology.queues])]
        self.unheard = QUEUES - topology.queues.keys()

    def stop(self) -> None:
        for inbox in self.inboxes:
            inbox.connection.release()
        self.inboxes = []

    def outcome(self, send: Callable[[Any, str], None], connection: kombu.Connection, who: str) -> list[str]:
        """Send, and return where that arrives: names of queues, an error's class, or `nowhere`."""
        try:
            send(connection, who + PADDING)
        except CeleryRedisPlusError as error:
            return [type(error).__name__]
        except kombu.exceptions.KombuError as error:
            return [type(error.__cause__ or error).__name__]
        found: list[str] = []
        wait_until(lambda: found.extend(self._arrived(who)) or found)
        found += self._arrived(who, quiet_s=0.02)
        return sorted(found)

    def _arrived(self, who: str, quiet_s: float = 0.01) -> Iterator[str]:
        for inbox in self.inboxes:
            inbox.rest(quiet_s)
            for message in inbox.messages:
                if message.payload.startswith(who):
                    yield message.queue
            inbox.messages.clear()
        channel = self.observer.default_channel
        for queue in self.unheard:
            if channel.basic_get(queue, no_ack=True) is not None:
                yield queue
        letters = dead_letters_of(channel)
        for queue in (SOURCE, UNDELIVERED):
            if letters.delete(queue, [letter.tag for letter in letters.all(queue)]):
                yield "nowhere"


@pytest.fixture
def world(connect) -> Iterator[World]:
    made = World(connect)
    yield made
    made.stop()


def declare_source(connection: kombu.Connection) -> None:
    """Declare the queue whose dead letters go to the exchange."""
    arguments = {"x-dead-letter-exchange": EXCHANGE, "x-dead-letter-routing-key": KEY}
    connection.default_channel.queue_declare(SOURCE, durable=True, arguments=arguments)


def refuses(topology: Topology) -> bool:
    declared = [*topology.queues.values(), *(arguments for _, arguments in topology.exchanges.values())]
    return SMALL in declared


def cases() -> Iterator[Any]:
    """Yield each change with each way; all but two of a change's ways are weekly."""
    for number, change in enumerate(CHANGES):
        for place, way in enumerate(WAYS):
            often = (place - number) % len(WAYS) in (0, 4)
            yield pytest.param(change, way, marks=() if often else pytest.mark.weekly)


@pytest.mark.sample(30)
@pytest.mark.parametrize(("change", "way"), [*cases()])
def test_who_knew_the_old_state_sends_where_a_new_process_does(world, connect, redis_client, change, way):
    made, how = CHANGES[change], WAYS[way]
    if how.passes_limits and refuses(made.after):
        pytest.skip("limits are for publishers")
    old, admin = connect(), connect()
    made.before.declare(admin.default_channel)
    declare_source(old)
    world.listen(made.before)
    world.outcome(how.send, old, "first")
    world.stop()
    made.make(admin.default_channel, redis_client)
    declare_source(old)
    world.listen(made.after)
    assert world.outcome(how.send, old, "old") == world.outcome(how.oracle, connect(), "new")


def is_heard(change: Change) -> bool:
    """Tell whether the consumers of both queues hear of a change.

    A binding to a fanout exchange is read by the connection that has made it, until that one removes it: see docs/broadcasts.md.
    """
    before, after = change.before.exchanges.get(EXCHANGE), change.after.exchanges.get(EXCHANGE)
    bound = [change.after.exchanges[exchange][0] for exchange, _ in change.after.bindings]
    stays_fanout = before is not None and after is not None and before[0] == after[0] == "fanout"
    return change.after.queues.keys() == QUEUES and "fanout" not in bound and not stays_fanout


HEARD = [name for name, change in CHANGES.items() if is_heard(change)]


@pytest.mark.sample(15)
@pytest.mark.parametrize("change", HEARD)
def test_who_consumed_in_the_old_state_gets_what_a_new_consumer_does(world, connect, redis_client, change):
    made, admin = CHANGES[change], connect()
    # Sweeps, by which a process notices what others have declared, come every 0.5 s then.
    world.connect = lambda: connect(visibility_timeout=3)
    made.before.declare(admin.default_channel)
    world.listen(made.before)
    world.connect = connect
    world.outcome(plain, connect(), "first")
    made.make(admin.default_channel, redis_client)
    heard = world.outcome(plain, connect(), "heard by the old one")
    world.stop()
    world.listen(made.after)
    assert heard == world.outcome(plain, connect(), "heard by a new one")
