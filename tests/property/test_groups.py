"""Queues with message groups against a model of them: whatever happens to messages, groups keep their limits, order and turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import kombu
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.keys import Keys
from tests.support.checking import found
from tests.support.inbox import declare, publish
from tests.support.invariants import violations

# Hypothesis sees that the maintenance thread draws its pauses while a strategy draws, and takes it for the strategy's doing.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

HOUR = 3_600_000
GROUPS = st.sampled_from(["a", "a", "b", 'ä"\\', None])
NUMBERS = st.integers(0, 30)
STEPS = st.one_of(
    st.tuples(st.just("publish"), GROUPS, st.sampled_from([0, 0, 0, 5, 9])),
    st.tuples(st.just("publish"), GROUPS, st.sampled_from([0, 0, 0, 5, 9])),
    st.tuples(st.just("get"), st.integers(1, 3), st.none()),
    st.tuples(
        st.sampled_from(
            ["ack", "ack", "reject", "requeue", "cancel", "die", "later", "now", "raise_", "delayed", "move", "purge", "replay"]
        ),
        NUMBERS,
        st.none(),
    ),
)


@dataclass
class One:
    """A message of the model."""

    number: int
    group: str | None
    rank: int
    tag: str = ""
    #: waiting, delayed, unacked, gone
    state: str = "waiting"
    #: Its place in its group.
    place: int = 0
    #: Whether it keeps the place of its group while it is delayed.
    keeps: bool = False
    #: Whether an operator has changed its priority.
    changed: bool = False
    message: object = field(default=None, repr=False)


class Queue:
    """The queue, and what should be in it."""

    def __init__(self, channel, client, concurrency, fair, strict, delays):
        self.channel, self.client = channel, client
        self.concurrency, self.fair, self.strict, self.delays = concurrency, fair, strict, delays
        self.admin = Messages(channel.session.commands, channel.session.keys, dead_letter_max=1000)
        self.dead = DeadLetters(channel.session.commands, channel.session.keys)
        self.all: list[One] = []
        self.clock = 0

    def tick(self):
        """Return the next place; on the server it is a later millisecond."""
        seconds, us = self.client.time()
        while (moment := self.client.time()) and (moment[0] - seconds) * 1000 + (moment[1] - us) // 1000 < 2:
            pass
        self.clock += 1
        return self.clock

    def pick(self, number, *states):
        found = [one for one in self.all if one.state in states]
        return found[number % len(found)] if found else None

    def publish(self, group, priority, **headers):
        one = One(len(self.all), group, 255 - priority, place=self.tick())
        self.all.append(one)
        before = self._tags()
        headers |= {} if group is None else {"x-message-group": group}
        publish(self.channel, "q", one.number, priority=priority, headers=headers)
        (tag,) = self._tags() - before
        one.tag = tag.decode()
        return one

    def _tags(self):
        return {key.rpartition(b":")[2] for key in self.client.scan_iter(b"message:{q}:*", count=1000)}

    def in_work(self, group):
        return sum(one.group == group and (one.state == "unacked" or one.keeps) for one in self.all)

    def may_come(self):
        waiting = [one for one in self.all if one.state == "waiting"]
        if not self.concurrency:
            return waiting
        return [one for one in waiting if one.group is None or self.in_work(one.group) < self.concurrency]

    def get(self, times, _=None):
        for _number in range(times):
            may_come = self.may_come()
            message = self.channel.basic_get("q")
            assert (message is None) == (not may_come), may_come
            if message is None:
                return
            one = self.all[message.payload]
            assert one in may_come
            if one.group is not None and self.concurrency in (None, 1):
                of_group = [other for other in may_come if other.group == one.group]
                # One that is ready keeps its turn before others of its priority, whatever that was when it got it.
                changed = any(other.changed for other in of_group)
                assert (one.rank, 0 if changed else one.place) == min(
                    (other.rank, 0 if changed else other.place) for other in of_group
                ), of_group
            # Priority comes first: of each group that may come, its best message stands for it.
            assert one.rank == min(other.rank for other in may_come)
            one.state, one.message, one.keeps = "unacked", message, False

    def ack(self, number, _=None):
        if one := self.pick(number, "unacked"):
            one.message.ack()
            one.state = "gone"

    def reject(self, number, _=None):
        if one := self.pick(number, "unacked"):
            one.message.reject()
            one.state = "dead"

    def replay(self, number, _=None):
        if one := self.pick(number, "dead"):
            one.place = self.tick()
            assert self.dead.replay(self.dead.read("q", [one.tag])[0])
            one.state = "waiting"

    def requeue(self, number, _=None):
        one = self.pick(number, "unacked")
        if one is None or (not self.delays and one.message.delivery_info["redelivered"]):
            return
        one.message.requeue()
        if self.delays:
            one.state, one.keeps = "delayed", self.strict
        else:
            one.state = "waiting"

    def cancel(self, number, _=None):
        if one := self.pick(number, "waiting", "delayed"):
            assert self.admin.cancel("q", [one.tag]) == [one.tag]
            one.state, one.keeps = "gone", False

    def die(self, number, _=None):
        if one := self.pick(number, "waiting", "delayed"):
            assert self.admin.cancel("q", [one.tag], dead_letter=True) == [one.tag]
            one.state, one.keeps = "dead", False

    def later(self, number, _=None):
        if one := self.pick(number, "waiting", "delayed"):
            assert self.admin.reschedule("q", one.tag, f"+{HOUR}")
            one.state = "delayed"

    def now(self, number, _=None):
        if one := self.pick(number, "waiting", "delayed"):
            one.place = self.tick()
            assert self.admin.reschedule("q", one.tag, 0)
            one.state, one.keeps = "waiting", False

    def raise_(self, number, _=None):
        if one := self.pick(number, "waiting", "delayed"):
            assert self.admin.prioritize("q", one.tag, number % 10)
            one.rank, one.changed = 255 - number % 10, True

    def delayed(self, number, _=None):
        self.publish("a" if number % 2 else "b", 0, **{"x-delay": HOUR}).state = "delayed"

    def move(self, number, _=None):
        """Into a queue without groups, and back."""
        if one := self.pick(number, "waiting"):
            there = self.admin.move("q", one.tag, "other")
            one.place = self.tick()
            one.tag = self.admin.move("other", there, "q")

    def purge(self, _number=0, _=None):
        waiting = [one for one in self.all if one.state in ("waiting", "delayed")]
        assert self.channel.queue_purge("q") == len(waiting)
        for one in waiting:
            one.state, one.keeps = "gone", False

    def check(self):
        counters = self.channel.queue_counters("q")
        states = [one.state for one in self.all]
        assert (counters.ready, counters.delayed, counters.unacked) == tuple(
            states.count(state) for state in ("waiting", "delayed", "unacked")
        )
        assert violations(self.client, Keys()) == []

    def end(self):
        assert found(self.client, Keys()) == []
        for one in self.all:
            if one.state == "unacked":
                one.message.ack()
            elif one.state == "delayed":
                # Each of them: one that keeps its place would hold up its group.
                assert self.admin.reschedule("q", one.tag, 0)
        while message := self.channel.basic_get("q"):
            message.ack()
        self.purge_left()

    def purge_left(self):
        counters = self.channel.queue_counters("q")
        assert (counters.ready, counters.unacked) == (0, 0)


CASES = {
    "one": (1, False, False, False),
    "one, delays": (1, False, False, True),
    "one, strict": (1, False, True, True),
    "two": (2, False, False, True),
    "one, restricted": (1, False, False, True),
    "fair": (None, True, False, False),
    "fair, two": (2, True, False, True),
}


def hold(kind, case, steps, examples, redis_client, broker_url):
    """Take `steps` at random on a queue of this case; a `kind` of `Queue` checks behind each."""
    concurrency, fair, strict, delays = CASES.get(case, (None, False, False, False))
    arguments = {
        **({"x-group-concurrency": concurrency} if concurrency else {}),
        **({"x-fair": True} if fair else {}),
        **({"x-group-order": "strict"} if strict else {}),
        **({"x-max-unacked": 99, "x-max-length": 99, "x-overflow": "reject-publish"} if "restricted" in case else {}),
        **({"x-event-log": True} if "delays" in case else {}),
        **({"x-retry-policy": f"linear first={HOUR}"} if delays else {}),
    }

    @settings(max_examples=examples, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(taken=st.lists(steps, min_size=5, max_size=40))
    def run(taken):
        redis_client.flushdb()
        with kombu.Connection(broker_url, transport_options={"delivery_limit": None}) as connection:
            channel = connection.channel()
            declare(channel, "q", arguments=arguments)
            declare(channel, "other")
            queue = kind(channel, redis_client, concurrency, fair, strict, delays)
            for name, *values in taken:
                getattr(queue, name)(*values)
                queue.check()
            queue.end()

    run()


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.weekly)])
@pytest.mark.parametrize("case", CASES)
def test_groups_keep_their_limits_their_order_and_their_turns(case, examples, redis_client, broker_url):
    hold(Queue, case, STEPS, examples, redis_client, broker_url)
