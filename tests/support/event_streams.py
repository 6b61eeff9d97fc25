"""Streams of lifecycle events as the scripts write them, made up: whole lives of messages, by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from celery_redis_plus import events
from celery_redis_plus.events import Event
from celery_redis_plus.keys import Keys, encode_name
from tests.support.replies import hash_fields

if TYPE_CHECKING:
    import redis
    from redis.typing import EncodableT, FieldT

#: 2025-11-24 16:00:00 UTC.
START_MS = 1_764_000_000_000
TASKS = ("shop.bill", "shop.ship", "shop.notify", "media.resize")
WORKERS = ("celery@one", "celery@two", "celery@three")


def life(number: int, start_us: int, random: random.Random, queue_id: str = "1") -> Iterator[Event]:  # noqa: C901, PLR0911 - a life has many ends
    """Yield the events of one message: most succeed at once; some wait, fail, are retried, expire, die or stay."""
    tag = f"{start_us // 1000:011x}{number:08x}.{queue_id}"
    now = start_us

    def event(kind: str, **values: object) -> Event:
        return Event(event=kind, ts=now, id=tag, **values)  # type: ignore[arg-type]

    task_id = f"{random.getrandbits(128):032x}"
    delay = random.randrange(100, 60_000) if random.random() < 0.1 else None
    yield event(
        "published",
        task_id=task_id,
        task=random.choice(TASKS),
        retries=0,
        root_id=task_id,
        exchange=None,
        routing_key="celery",
        priority=random.choice((0, 5, 9)),
        eta=start_us // 1000 + delay if delay else None,
        body_size=random.randrange(80, 2000),
    )
    if delay:
        yield event("delayed", delay=delay)
        now += delay * 1000 + random.randrange(50_000)
        yield event("promoted")
    fate = random.random()
    if fate < 0.01:
        yield event(random.choice(("expired", "cancelled", "purged")))
        return
    if fate < 0.02:
        return
    for claim in range(1, 6):
        now += int(random.expovariate(1 / 2_000_000))
        worker = random.choice(WORKERS)
        yield event("claimed", claim=claim, worker=worker)
        now += int(random.expovariate(1 / 500_000))
        end = random.random()
        if end < 0.88:
            yield event("acked")
            return
        if end < 0.91:
            yield event("acked", reason="failure", error="ValueError")
            return
        if end < 0.93:
            yield event("acked", reason="retry", error="ConnectionError")
            return
        if end < 0.95:
            yield event("dead_lettered", reason="rejected", error="KeyError")
            return
        if end < 0.96:
            return
        if end < 0.97:
            yield event("recovered", reason="heartbeat_lost")
        elif end < 0.98:
            yield event("requeued", reason="handed_back")
        else:
            wait = 2**claim * 100
            yield event("retried", reason="failure", error="TimeoutError", delay=wait)
            now += wait * 1000
            yield event("promoted")
    yield event("claimed", claim=6, worker=random.choice(WORKERS))
    yield event("dead_lettered", reason="delivery_limit")


def lives(
    messages: int, *, seed: int = 1, start_ms: int = START_MS, spacing_us: int = 10_000, queue_id: str = "1"
) -> list[Event]:
    """Return the events of `messages` messages, in the order of their time."""
    source = random.Random(seed)
    found = [
        (event.ts, number, step, event)
        for number in range(messages)
        for step, event in enumerate(life(number, start_ms * 1000 + number * spacing_us, source, queue_id))
    ]
    found.sort(key=lambda row: row[:3])
    return [row[3] for row in found]


def add_events(
    client: redis.Redis,
    queue: str,
    added: Iterable[Event],
    *,
    prefix: str = "",
    epoch: int = START_MS,
    payload: bytes | None = None,
) -> int:
    """Append `added` to the events of `queue` as the scripts do, and return how many they were."""
    keys = Keys(prefix).queue(queue)
    client.sadd(Keys(prefix).event_logs, encode_name(queue))
    fresh = client.hsetnx(keys.events_meta, "epoch", epoch)
    client.hsetnx(keys.events_meta, "version", events.SCHEMA_VERSION)
    epoch = int(client.hget(keys.events_meta, "epoch") or 0)
    count = 0
    batch: list[Event] = []
    for event in (*added, None):
        if event is not None:
            batch.append(event)
        if len(batch) >= 5000 or (event is None and batch):
            count += len(batch)
            _add(client, keys.events, batch, epoch, fresh=bool(fresh), payload=payload)
            fresh, batch = 0, []
    return count


def begin_epoch(client: redis.Redis, queue: str, epoch: int, event: Event, *, prefix: str = "") -> None:
    """Begin another epoch as the scripts do after a failover, with its first event."""
    keys = Keys(prefix).queue(queue)
    old, last = events.entry_id(client.xinfo_stream(keys.events)["last-generated-id"])
    client.hset(keys.events_meta, "ended", hash_fields(client, keys.events_meta).get(b"ended", b"") + f"{old}:{last} ".encode())
    client.hset(keys.events_meta, "epoch", epoch)
    client.xadd(keys.events, {events.FIELD: events.encode(event)}, id=f"{epoch}-1")


def _add(client: redis.Redis, key: bytes, batch: Sequence[Event], epoch: int, *, fresh: bool, payload: bytes | None) -> None:
    pipeline = client.pipeline(transaction=False)
    for place, event in enumerate(batch):
        fields: dict[FieldT, EncodableT] = {events.FIELD: events.encode(event)}
        if payload is not None and event.event == "published":
            fields[events.PAYLOAD_FIELD] = payload
        pipeline.xadd(key, fields, id=f"{epoch}-1" if fresh and place == 0 else f"{epoch}-*")
    pipeline.execute()


def end_log(client: redis.Redis, keys: Keys, queue: str) -> None:
    """End an event log as the sweep does, days after its last event."""
    info = client.xinfo_stream(keys.queue(queue).events)
    epoch, last = info["last-generated-id"].decode().split("-")
    client.hset(keys.queue(queue).events_meta, mapping={"ended": f"{epoch}:{last} ", "removed": info["entries-added"]})
    client.hdel(keys.queue(queue).events_meta, "epoch")
    client.unlink(keys.queue(queue).events)
    client.srem(keys.event_logs, queue)
