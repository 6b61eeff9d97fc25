"""No queue of a connection waits for the backlog of another, whatever is published when, over one channel or two."""

from __future__ import annotations

import kombu
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.inbox import Inbox, publish

QUEUES = ("a", "b", "c")
#: Deliveries from others that a queue with messages may have to wait for, for each message that channels may take ahead.
TURNS = 8
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(QUEUES), st.sampled_from((1, 3, 40))),
        st.tuples(st.just("deliver"), st.integers(1, 25)),
    ),
    min_size=2,
    max_size=8,
)


class Consumed:
    """The queues over channels of one connection, and how long each has waited."""

    def __init__(self, connection: kombu.Connection, publisher: kombu.Connection, channels: list[tuple[str, ...]], prefetch: int):
        self.bound = TURNS * prefetch * len(QUEUES)
        self.publisher = publisher.channel()
        self.left = dict.fromkeys(QUEUES, 0)
        self.waited = dict.fromkeys(QUEUES, 0)
        self.inboxes = [Inbox(connection.channel(), *names, prefetch=prefetch) for names in channels]
        for inbox in self.inboxes:
            inbox.consumer.on_message = self.take

    def take(self, message: kombu.Message) -> None:
        name = message.delivery_info["routing_key"]
        self.left[name] -= 1
        for queue in QUEUES:
            self.waited[queue] = 0 if queue == name or not self.left[queue] else self.waited[queue] + 1
            assert self.waited[queue] <= self.bound, f"{queue!r} has waited for {self.waited[queue]} deliveries from others"
        message.ack()

    def publish(self, queue: str, count: int) -> None:
        publish(self.publisher, queue, *range(count))
        self.left[queue] += count

    def deliver(self, count: int) -> None:
        for _ in range(min(count, sum(self.left.values()))):
            assert self.inboxes[0].pump(5), f"nothing came, and {self.left} are left"


# The maintenance threads spread their retries by `random` while hypothesis draws.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_no_queue_waits_for_the_backlog_of_another(redis_client, broker_url):
    @settings(
        max_examples=20, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(
        steps=STEPS,
        prefetch=st.sampled_from((1, 1, 2)),
        channels=st.sampled_from(([("a", "b", "c")], [("a",), ("b", "c")], [("c",), ("a",), ("b",)])),
    )
    def run(steps, prefetch, channels):
        redis_client.flushdb()
        with kombu.Connection(broker_url) as connection, kombu.Connection(broker_url) as publisher:
            consumed = Consumed(connection, publisher, channels, prefetch)
            for what, count in steps:
                if what == "deliver":
                    consumed.deliver(count)
                else:
                    consumed.publish(what, count)
            consumed.deliver(1000)

    run()
