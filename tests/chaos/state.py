"""What the server says about a queue's messages."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from celery_redis_plus.keys import Keys
from tests.support.checking import found
from tests.support.invariants import violations
from tests.support.judge import records
from tests.support.judge.recorder import note

if TYPE_CHECKING:
    import redis

#: What stays when a lasting queue is empty: its record and its place in the lists, the list of limiters; of broadcasts the
#: streams, their counters, and subscribers that were killed, for `subscriber_timeout`; consumers that were killed, until a living
#: one finds them dead.
RECORDS = tuple(
    b"meta: queues queue_ids database_id exchanges binding: always_swept limiters fanout: "
    b"cursors: subscriber /0. consumers: consumer:".split()
)
#: Of a queue with rules for its consumers: their mark, and a wake-up that no consumer has taken; not one consumer's own.
OF_RULES = re.compile(rb"(with_credit|wakeup):\{[^}]*\}")
#: A consumer's own wake-up: it stays as long as the consumer is listed, so that of a killed one until a living one finds it dead.
OWN_WAKEUP = re.compile(rb"wakeup:(\{[^}]*\}:.+)")
PLACES = ("queue", "delayed", "messages_index", "dead")


def places(client: redis.Redis, queue: str) -> dict[str, int]:
    """Return how many messages are in each place, e.g. `{"queue": 3, "messages_index": 1, …}`."""
    return {place: client.zcard(f"{place}:{{{queue}}}") for place in PLACES}


def remaining(client: redis.Redis, queue: str) -> str:
    """Return a line for each of the first messages left: its tag, seconds until its score's time, its hash without payload."""
    lines = [str(places(client, queue))]
    for place in ("messages_index", "queue", "delayed"):
        for tag, score in client.zrange(f"{place}:{{{queue}}}", 0, 9, withscores=True):
            fields = client.hgetall(f"message:{{{queue}}}:{tag.decode()}")
            short = {name.decode(): value[:200] for name, value in fields.items() if name not in {b"payload", b"body"}}
            lines.append(f"{place}: {tag.decode()}, {score / 1000 - time.time():+.1f} s, {short}")
    return "\n".join(lines)


def empty(client: redis.Redis, queue: str) -> bool:
    """Whether the queue has no message in any place; the record of the run has it."""
    # What is confirmed later need not have been there.
    looked_at = time.monotonic()
    # From the outbox dead letters go on to their exchange.
    is_empty = not any(places(client, queue).values()) and not client.exists(f"dlx_outbox:{{{queue}}}")
    if is_empty:
        note(records.DRAINED, tick=looked_at, queue=queue)
    return is_empty


def leftovers(client: redis.Redis) -> list[bytes]:
    """Return the keys that belong to no queue or exchange as such, and do not expire by themselves."""
    with client.pipeline(transaction=False) as pipeline:
        keys = [key for key in client.scan_iter(count=1000) if not key.startswith(RECORDS) and not OF_RULES.fullmatch(key)]
        for key in keys:
            pipeline.pttl(key)
        lasting = sorted(key for key, ttl_ms in zip(keys, pipeline.execute(), strict=True) if ttl_ms == -1)
    return [key for key in lasting if not ((own := OWN_WAKEUP.fullmatch(key)) and client.exists(b"consumer:" + own[1]))]


def check_invariants(client: redis.Redis) -> None:
    """Check the design's invariants over the whole database. Nothing may use it meanwhile."""
    broken = [*violations(client, Keys()), *found(client, Keys())]
    assert not broken, broken
