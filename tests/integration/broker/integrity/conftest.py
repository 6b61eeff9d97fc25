"""A queue with a message in every place, to be damaged: the check finds it, says what it is, repairs it, and loses no message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.integrity import Checker
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.stored_message import Outgoing
from tests.support.invariants import violations

FAR = 10**12


@dataclass
class State:
    """A queue with a message in every place."""

    broker: object
    ready: bytes
    urgent: bytes
    delayed: bytes
    claimed: bytes
    dead: bytes

    @property
    def client(self):
        return self.broker.client

    @property
    def keys(self):
        return self.broker.keys.queue("q")

    def hash(self, tag):
        return self.keys.message + tag

    def publish(self, queue, body, priority=0, **more):
        publish(self.broker, queue, body, priority, **more)

    def check(self, *, repair=False, queue=None, **options):
        checker = Checker(self.broker.commands, self.broker.keys, self.broker.queues, repair=repair, settle_s=0, **options)
        return list(checker.run(queue))

    def rules(self, **options):
        return Counter(violation.rule for violation in self.check(**options))

    def repair(self):
        """Repair; what was found before and during the repair agrees, and nothing is left to be found."""
        found = self.check()
        mended = self.check(repair=True)
        assert {v.rule for v in mended} >= {v.rule for v in found}
        assert all(violation.repaired for violation in mended)
        assert self.check() == []
        assert violations(self.client, self.broker.keys) == []

    def place(self, tag):
        names = ("ready", "delayed", "index", "dlx_outbox", "dead")
        return [name for name in names if self.client.zscore(getattr(self.keys, name), tag) is not None]


def publish(broker, queue, body, priority=0, **more):
    envelope = b'{"properties":{"priority":%d}}' % priority
    broker.publisher.to_queue(queue, Outgoing(envelope, body, 255 - priority, **more), PublishAttempt())


@pytest.fixture
def state(broker):
    broker.declare("q")
    for body in (b"claimed", b"dead"):
        publish(broker, "q", body, 255)
    claimed, dead = broker.claim("q")
    broker.settle(Settlement.REJECT, dead)
    publish(broker, "q", b"ready")
    publish(broker, "q", b"urgent", 9)
    publish(broker, "q", b"delayed", eta=4 * FAR)
    client, keys = broker.client, broker.keys.queue("q")
    urgent, ready = client.zrange(keys.ready, 0, -1)
    (delayed,) = client.zrange(keys.delayed, 0, -1)
    state = State(broker, ready, urgent, delayed, claimed.tag.encode(), dead.tag.encode())
    assert state.check() == []
    return state
