"""Whatever the keys of one queue hold, the other queues of its consumers go on: a fault stays where it began.

Each kind of key that a queue has (`key_descriptions.py`) is replaced by one of another type, and each field of its record
(`record_fields.py`) by a text that is neither number nor name. So a new key, or a new field, has its test.
Several damaged queues stand beside the good one; with `--weekly` each of them alone as well: no damage hides another one then.
"""

from __future__ import annotations

from contextlib import suppress

import kombu
import pytest
from field_descriptions import QUEUE_FIELDS
from key_descriptions import OF_A_QUEUE

from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.errors import ConsumerCancelled
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

GOOD = Keys().queue("good")
#: Rules for consumers, for whose sake `claim_restricted` takes from the queue, and for publishers.
RULES = {"x-single-active-consumer": True, "x-max-unacked": 50, "x-rate-limit": 1000, "x-max-length": 1000}
#: Heartbeats and sweeps every half second; each second a look at the lists of consumers.
OPTIONS = {"visibility_timeout": 3, "consumer_heartbeat_timeout": 3, "polling_interval": 1}
#: A message of the good queue that a consumer works on all the time.
HELD = b"held"
#: Keys of a queue whose names are known beforehand, or have the consumer's id.
KINDS = [
    one.pattern
    for one in OF_A_QUEUE
    if not any(word in one.key for word in (b"TAG", b"NUMBER", b"PUBLISHER", b"PRODUCER", b"TEXT", b"TASK"))
]


#: Damaged queues in one scene.
TOGETHER = 8


def together(cases):
    """Return the cases in groups, and each of them by itself for the weekly form."""
    groups = [pytest.param(cases[at : at + TOGETHER], id=f"{at}-") for at in range(0, len(cases), TOGETHER)]
    return [*groups, *(pytest.param([case], id=case, marks=pytest.mark.weekly) for case in cases)]


class Scene:
    """Two connections, each of which consumes all queues, and a consumer that has hung with a message of the good one."""

    def __init__(self, connect, client, arguments, bad):
        self.client = client
        self.publisher = connect().channel()
        self.bad = [f"bad{number}" for number in range(bad)]
        queues = [kombu.Queue(name, durable=True, queue_arguments=arguments) for name in self.bad]
        queues.append(kombu.Queue("good", durable=True))
        for queue in queues:
            queue(self.publisher).declare()
        publish(self.publisher, "good", "lost")
        session = self.publisher.session
        hung = ClaimCommands(session.commands, session.keys, holder="hung", visibility_timeout_s=3600)
        (self.lost,) = hung.claim(["good"], 1, share=False).messages
        self.inboxes = [Inbox(connect(**OPTIONS).channel(), *queues, prefetch=10, ack=False) for _ in range(2)]
        for name in self.bad:
            publish(self.publisher, name, "1", "2", "3")
        publish(self.publisher, "good", "held")
        self.take(HELD)

    @property
    def messages(self):
        return [message for inbox in self.inboxes for message in inbox.messages]

    def pump(self):
        for inbox in self.inboxes:
            # What a field says may be that a bad queue belongs to somebody else.
            with suppress(ConsumerCancelled):
                inbox.pump(0.02)

    def take(self, body):
        """Let both consumers take deliveries until this message of the good queue has come; ack all but the one that is held."""

        def taken():
            self.pump()
            for message in self.messages:
                if not message.acknowledged and message.body != HELD:
                    message.ack()
            return any(message.body == body and message.delivery_info["routing_key"] == "good" for message in self.messages)

        wait_until(taken, 20, f"message {body!r}", interval_s=0)

    def wait(self, condition):
        def holds():
            self.pump()
            return condition()

        wait_until(holds, 20, condition.__name__, interval_s=0)

    def signs(self):
        """Return the end of each lease of the good queue, and when its consumers were heard of."""
        leases = [end for _, end in self.client.zrange(GOOD.index, 0, -1, withscores=True)]
        names = self.client.zrange(GOOD.consumers, 0, -1)
        return leases, [int(self.client.hget(GOOD.consumer + name, "heard")) for name in names]

    def damage(self, name, pattern):
        """Replace the keys of a bad queue that are spelled so by texts."""
        for consumer in self.client.zrange(Keys().queue(name).consumers, 0, -1):
            key = pattern.replace("{Q}", f"{{{name}}}").encode().replace(b"CONSUMER", consumer)
            self.client.delete(key)
            self.client.set(key, "foreign")

    def check(self):
        """All that consumers and their processes do for the good queue still happens, and nothing raises."""
        for body in (b"1", b"2", b"3"):
            publish(self.publisher, "good", body.decode())
            self.take(body)
        # The lease of the one that hangs ends.
        self.client.zadd(GOOD.index, {self.lost.tag: 1})
        self.take(b"lost")
        # Acks are flushed together: only the message that is held keeps its lease.
        self.wait(lambda: self.client.zcard(GOOD.index) == 1)
        before = self.signs()

        def heard():
            return all(len(new) == len(old) and min(new) > max(old) for new, old in zip(self.signs(), before, strict=True))

        self.wait(heard)
        (held,) = (message for message in self.messages if message.body == HELD)
        held.ack()
        self.wait(lambda: not self.client.zcard(GOOD.index))
        assert not self.client.keys(GOOD.message + b"*")
        assert not self.inboxes[0].channel.session.service.runner.failing
        for inbox in self.inboxes:
            inbox.connection.release()
        assert not self.client.exists(GOOD.consumers)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arguments", [{}, RULES], ids=["plain", "ruled"])
@pytest.mark.parametrize("patterns", together(KINDS))
def test_a_key_of_another_type_harms_no_other_queue(connect, redis_client, patterns, arguments):
    scene = Scene(connect, redis_client, arguments, bad=len(patterns))
    for name, pattern in zip(scene.bad, patterns, strict=True):
        scene.damage(name, pattern)
    scene.check()


@pytest.mark.sample(4)
@pytest.mark.parametrize("fields", together([*QUEUE_FIELDS]))
def test_a_damaged_field_of_its_record_harms_no_other_queue(connect, redis_client, fields):
    scene = Scene(connect, redis_client, RULES, bad=len(fields))
    for name, field in zip(scene.bad, fields, strict=True):
        redis_client.hset(Keys().queue(name).meta, field, "x")
    scene.check()
