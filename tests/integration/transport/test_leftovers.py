"""What a queue leaves on the server when it is deleted: producers' records for a while, and nothing else."""

from __future__ import annotations

import kombu
import pytest

from tests.support.inbox import publish
from tests.support.waiting import wait_until

#: Keys of the database that stay, each one key whatever was deleted; `docs/operating.md` lists them.
STAY = {b"queues", b"queue_ids", b"database_id", b"always_swept", b"sweep_wakeup", b"event_logs", b"exchanges"}

#: Kind -> declaration, arguments, consumers' arguments, how messages are published.
KINDS = {
    "plain": ({}, {}, [{}], {}),
    "priorities": ({}, {}, [{"x-priority": 10}, {"x-priority": 3}, {}], {}),
    "single active consumer": ({}, {"x-single-active-consumer": True}, [{}, {}], {}),
    "exclusive consumer": ({}, {}, [{"exclusive": True}], {}),
    "exclusive": ({"exclusive": True, "durable": False}, {}, [{}], {}),
    "limited": ({}, {"x-max-length": 3, "x-overflow": "drop-head"}, [{}], {}),
    "blocking": ({}, {"x-max-length": 100, "x-max-length-bytes": 10_000, "x-overflow": "block"}, [{}], {}),
    "throttled": ({}, {"x-max-length": 9, "x-throttle": True}, [{}], {}),
    "typed": ({}, {"x-accept-types": ["t"]}, [{}], {"type": "t"}),
    "rate limit": ({}, {"x-rate-limit": 2}, [{}], {}),
    "unacked limit": ({}, {"x-max-unacked": 1}, [{}, {}], {}),
    "ageing": ({}, {"x-priority-ageing": 5000}, [{}], {}),
    "transient": ({"auto_delete": True, "durable": False}, {}, [{}], {}),
    "expires": ({}, {"x-expires": 60_000}, [{}], {}),
    "dead-letter source": ({}, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, [{}], {}),
    "message TTL": ({}, {"x-message-ttl": 60_000}, [{}], {}),
    "delayed": ({}, {}, [{}], {"headers": {"x-delay": 60_000}}),
    "event-logged": ({}, {"x-event-log": True}, [{}], {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_queue_leaves_only_what_goes_by_itself(kind, connect, redis_client):
    declaration, arguments, consumers, properties = KINDS[kind]
    channel = connect().channel()
    declared = {"durable": True, **declaration}
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("q", arguments=arguments, **declared)
    tags = []
    for number, wants in enumerate(consumers):
        own = channel if declaration.get("exclusive") or wants.get("exclusive") else connect().channel()
        own.basic_qos(0, 1, False)
        given = {"exclusive": True} if wants.get("exclusive") else {"arguments": wants}
        own.basic_consume("q", False, lambda message: None, f"c{number}", **given)
        tags.append((own, f"c{number}"))
    for number in range(5):
        publish(channel, "q", number, **properties)
    rejected = None
    for own, _ in tags:
        try:
            own.connection.client.drain_events(timeout=0.2)
        except TimeoutError:
            continue
    for own, _ in tags:
        for held in own.qos.unsettled():
            own.basic_reject(held.tag, requeue=rejected is not None)
            rejected = held
    for own, tag in tags:
        own.basic_cancel(tag)
    channel.queue_delete("q")
    channel.queue_delete("dead")
    wait_until(lambda: not left(redis_client), 8, lambda: str(left(redis_client)))


def left(client):
    """Return what is left that nobody expects: key -> its TTL in ms."""
    keys = {key: client.pttl(key) for key in client.keys("*")}
    return {key: ttl for key, ttl in keys.items() if not (key in STAY or _goes(key, ttl) or key.startswith(b"events"))}


def _goes(key, ttl):
    lives_ms = {
        b"producer": 900_000, b"client_wakeup": 60_000, b"binding": 3_600_000,
        # Those that were passed on while the queue was deleted.
        b"wakeup": 60_000, b"schedule_wakeup": 60_000,
        b"processes": 86_400_000, b"heartbeats": 86_400_000, b"leader": 86_400_000,
    }  # fmt: skip
    return 0 < ttl <= lives_ms.get(key.partition(b":")[0], 0)


def test_a_deleted_fanout_subscriber_and_its_exchange_leave_nothing(connect, redis_client):
    channel = connect().channel()
    channel.exchange_declare("f", "fanout")
    channel.queue_declare("q", exclusive=True)
    channel.queue_bind("q", "f")
    channel.basic_consume("q", True, lambda message: None, "c")
    kombu.Producer(channel, exchange=kombu.Exchange("f", "fanout", no_declare=True)).publish("x")
    channel.connection.client.drain_events(timeout=5)
    channel.basic_cancel("c")
    channel.queue_delete("q")
    channel.exchange_delete("f")
    wait_until(lambda: not left(redis_client), 8, lambda: str(left(redis_client)))
