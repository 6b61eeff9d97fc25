"""The queues of a storm's load: what each one promises is in its arguments, and the judge reads them (`records.DECLARED`)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis

from tests.support.judge import records
from tests.support.judge.recorder import note

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = "celery"
SINGLE, BOUNDED, THROTTLED, ONCE, POISON, GRAVES = "single", "bounded", "throttled", "once", "poison", "graves"
TENANTS, LIMITED = "tenants", "limited"
#: Failed deliveries after which a message of `POISON` becomes a dead letter.
DELIVERY_LIMIT = 3
#: Queue -> its arguments.
ARGUMENTS: dict[str, dict[str, Any]] = {
    SINGLE: {"x-single-active-consumer": True},
    BOUNDED: {"x-max-pending": 25, "x-max-unacked": 4, "x-overflow": "reject-publish"},
    # Not `x-max-length`: what returns to a queue may pass that.
    THROTTLED: {"x-max-pending": 300, "x-overflow": "block", "x-throttle": 0.3},
    ONCE: {},
    POISON: {
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": GRAVES,
        # Repeated requests for a requeue wait, up to this: a storm has no time for that.
        "x-delayed-retry-min": 1,
        "x-delayed-retry-max": 1,
    },
    GRAVES: {},
    TENANTS: {"x-group-concurrency": 1},
    LIMITED: {},
}
#: Queue -> the exchange to which it is bound, its type, and the key: never the queue's name.
DIRECT, TOPIC = "chaos-direct", "chaos-topic"
BINDINGS = {
    "picked": (DIRECT, "direct", "pick"),
    "packed": (DIRECT, "direct", "pack"),
    "orders": (TOPIC, "topic", "order.#"),
    "paid": (TOPIC, "topic", "*.*.paid"),
}
#: All that workers consume.
CONSUMED = (PLAIN, *ARGUMENTS, *BINDINGS)
#: Where messages are counted by the limits -> the keys of these places.
COUNTED = {"waiting": ("queue", "delayed"), "unacked": ("messages_index",)}
#: Of a queue's places how many messages each has, in one step.
DEPTH = """
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('ZCARD', key) end
return found
"""


def look(client: redis.Redis, queues: Iterable[str] = (BOUNDED, THROTTLED)) -> None:
    """Note how many messages queues with limits have; nothing where the server does not answer."""
    for queue in queues:
        keys = [f"{place}:{{{queue}}}" for places in COUNTED.values() for place in places]
        with suppress(redis.RedisError):
            ready, delayed, unacked = client.eval(DEPTH, len(keys), *keys)
            note(records.DEPTH, queue=queue, detail={"waiting": ready + delayed, "unacked": unacked})
