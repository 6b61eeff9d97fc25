"""Limiters, with and without groups, against a model: none lets more through, and none keeps what it has room for."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from celery_redis_plus.broker.arguments.limiters import LimiterRule
from celery_redis_plus.broker.queues.limiters import set_limiter_rule
from celery_redis_plus.keys import Keys
from tests.property.test_groups import NUMBERS, STEPS, Queue, hold
from tests.support.checking import found
from tests.support.waiting import wait_until

# Hypothesis sees that the maintenance thread draws its pauses while a strategy draws, and takes it for the strategy's doing.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

#: Limiter -> how many messages it lets through at once, or in all: an hour is longer than any test.
RULES = {"p:concurrency=1": 1, "p2:concurrency=2": 2, "b:1/h burst=3": 3, "w:2/h window": 2}
LIMITERS = st.sampled_from([None, None, *RULES])
LIMITED_STEPS = st.one_of(
    st.tuples(st.just("limited"), LIMITERS, NUMBERS), st.tuples(st.just("limited"), LIMITERS, NUMBERS), STEPS, STEPS
)


class LimitedQueue(Queue):
    """The queue, and what should be in it; the limiter of each message by its number."""

    def __init__(self, *args):
        super().__init__(*args)
        self.limiters: dict[int, str] = {}
        self.used = dict.fromkeys(RULES, 0)

    def limited(self, limiter, number):
        headers = {} if limiter is None else {"x-limiter": limiter}
        one = self.publish("a" if number % 3 else None, 9 if number % 5 == 0 else 0, **headers)
        if limiter is not None:
            self.limiters[one.number] = limiter

    def has_room(self, one):
        limiter = self.limiters.get(one.number)
        if limiter is None:
            return True
        if "concurrency" not in limiter:
            return self.used[limiter] < RULES[limiter]
        in_work = [other for other in self.all if other.state == "unacked" and self.limiters.get(other.number) == limiter]
        return len(in_work) < RULES[limiter]

    def may_come(self):
        return [one for one in super().may_come() if self.has_room(one)]

    def get(self, times, _=None):
        for _number in range(times):
            may_come = self.may_come()
            message = self.channel.basic_get("q")
            assert (message is None) == (not may_come), may_come
            if message is None:
                return
            one = self.all[message.payload]
            assert one in may_come
            assert one.rank == min(other.rank for other in may_come)
            limiter = self.limiters.get(one.number)
            if limiter is not None:
                self.used[limiter] += 1
                alike = [other for other in may_come if self.limiters.get(other.number) == limiter]
                if all(other.group is None and not other.changed for other in alike):
                    assert (one.rank, one.place) == min((other.rank, other.place) for other in alike)
            one.state, one.message, one.keeps = "unacked", message, False

    def end(self):
        assert found(self.client, Keys()) == []
        session = self.channel.session
        for limiter in RULES:
            rule = "concurrency=99" if "concurrency" in limiter else "1000/s burst=1000"
            set_limiter_rule(session.commands, session.keys, limiter.partition(":")[0], LimiterRule.parse(rule))
        for one in self.all:
            if one.state == "unacked":
                one.message.ack()
            elif one.state == "delayed":
                assert self.admin.reschedule("q", one.tag, 0)

        def drained():
            while message := self.channel.basic_get("q"):
                message.ack()
            counters = self.channel.queue_counters("q")
            return counters.ready + counters.unacked == 0

        wait_until(drained, 10)
        left = [b"limited:{q}", b"limited_until:{q}", b"limiter_queues", b"limiter_places:{p}", b"limiter_places:{p2}"]
        assert self.client.exists(*left) == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.weekly)])
@pytest.mark.parametrize("case", ["plain", "one", "one, delays", "fair, two"])
def test_limiters_let_through_what_they_may_and_no_more(case, examples, redis_client, broker_url):
    hold(LimitedQueue, case, LIMITED_STEPS, examples, redis_client, broker_url)
