"""A queue with a limit against a model of it: whatever happens to its messages, it refuses one exactly when it is full."""

from __future__ import annotations

from collections import Counter

import kombu
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.errors import QueueFull
from tests.support.inbox import declare, publish

# Hypothesis sees that the maintenance thread draws its pauses while a strategy draws, and takes it for the strategy's doing.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

#: More than what the scripts need to take the short way (`CLEAR_OF` in publish_bounded.lua), so that both ways are taken.
LIMIT = 20
#: Publishes come in runs, so that the limit is met and the short way, too.
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["delay", "get", "ack", "reject", "requeue", "cancel", "purge"]), st.integers(1, 6)),
)


class FlowController:
    """The queue, and what it should hold."""

    def __init__(self, channel, counted):
        self.channel = channel
        self.counted = counted
        self.messages = Messages(channel.session.commands, channel.session.keys, dead_letter_max=1000)
        self.has = Counter(ready=0, delayed=0)
        self.unacked = []
        self.done = Counter(published=0, acked=0, dead_lettered=0, rejected=0, purged=0, cancelled=0)

    def full(self):
        return self.has.total() + (len(self.unacked) if self.counted == "x-max-pending" else 0) >= LIMIT

    def publish(self, place="ready"):
        headers = {"x-delay": 3_600_000} if place == "delayed" else {}
        if self.full():
            with pytest.raises(QueueFull, match=f"{self.counted} is {LIMIT}"):
                publish(self.channel, "q", "x", headers=headers)
            self.done["rejected"] += 1
        else:
            publish(self.channel, "q", "x", headers=headers)
            self.has[place] += 1
            self.done["published"] += 1

    def delay(self):
        self.publish("delayed")

    def get(self):
        message = self.channel.basic_get("q")
        assert (message is not None) == (self.has["ready"] > 0)
        if message is not None:
            self.has["ready"] -= 1
            self.unacked.append(message)

    def ack(self):
        if self.unacked:
            self.unacked.pop().ack()
            self.done["acked"] += 1

    def reject(self):
        if self.unacked:
            self.unacked.pop().reject()
            self.done["dead_lettered"] += 1

    def requeue(self):
        # Only once: from the second time on it waits a little.
        if self.unacked and not self.unacked[-1].delivery_info["redelivered"]:
            self.unacked.pop().requeue()
            self.has["ready"] += 1

    def cancel(self):
        place = "ready" if self.has["ready"] else "delayed"
        key = {"ready": "queue:{q}", "delayed": "delayed:{q}"}[place]
        for tag in self.channel.session.commands.command("ZRANGE", key, 0, 0):
            assert self.messages.cancel("q", [tag.decode()])
            self.has[place] -= 1
            self.done["cancelled"] += 1

    def purge(self):
        self.done["purged"] += self.channel.queue_purge("q")
        self.has.clear()

    def check(self):
        found = self.channel.queue_counters("q")
        assert (found.ready, found.delayed, found.unacked) == (self.has["ready"], self.has["delayed"], len(self.unacked))
        assert {name: getattr(found, name) for name in self.done} == dict(self.done)


@pytest.mark.parametrize("counted", ["x-max-length", "x-max-pending"])
def test_a_queue_refuses_exactly_when_it_is_full(counted, redis_client, broker_url):
    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(steps=st.lists(STEPS, min_size=5, max_size=40))
    def run(steps):
        redis_client.flushdb()
        with kombu.Connection(broker_url, transport_options={"delivery_limit": None}) as connection:
            channel = connection.channel()
            declare(channel, "q", arguments={counted: LIMIT, "x-overflow": "reject-publish"})
            queue = FlowController(channel, counted)
            for name, times in steps:
                for _ in range(1 if name == "purge" else times):
                    getattr(queue, name)()
                queue.check()

    run()
