"""The invariants of DESIGN.md ("State of a message"), checked on a server that nobody writes to meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.consumers.wakeup_waiter import FORWARDED_WAKEUP_MS
from celery_redis_plus.keys import Keys, decode_name
from tests.support.replies import sorted_set_members

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.keys import QueueKeys

#: A message's places; it is in exactly one of them, or in the trash.
PLACES = ("ready", "delayed", "index", "dlx_outbox", "dead", "held")
TRASH = "trash"
LEVEL = 10**13
STAGED = b"staged."
PAGE = 500
FIELDS = ("score", "claim", "owner", "expires", "delay")

Places = dict[str, dict[bytes, float]]


@dataclass(frozen=True)
class _Hash:
    """A message's hash, without its body."""

    tag: bytes
    ttl_ms: int
    has_payload: bool
    score: bytes | None
    claim: bytes | None
    owner: bytes | None
    expires: bytes | None
    delay: bytes | None


def violations(client: redis.Redis, keys: Keys | str = "", *, swept: bool = False) -> list[str]:
    """Return a sentence for each violation in the database of `client`.

    Args:
        client: answers bytes.
        keys: spells the keys; or the prefix of an app.
        swept: every queue was swept after the last wakeup was taken, so that wakeups have to be there.
    """
    return list(_violations(client, Keys(keys) if isinstance(keys, str) else keys, swept=swept))


def _violations(client: redis.Redis, keys: Keys, *, swept: bool) -> Iterator[str]:
    names = [decode_name(name) for name in sorted_set_members(client, keys.queues)]
    queues = {keys.queue(name).message: keys.queue(name) for name in names}
    tags: dict[bytes, list[bytes]] = {prefix: [] for prefix in queues}
    literal = re.sub(rb"([*?\[\]\\^])", rb"\\\1", keys.prefix.encode())
    for key in client.scan_iter(literal + b"message:{*", count=1000):
        prefix, tag = key[: key.rindex(b":") + 1], key[key.rindex(b":") + 1 :]
        if prefix in tags:
            tags[prefix].append(tag)
        else:
            yield f"{key!r} belongs to no queue in the list of queues"
    for prefix, queue in queues.items():
        for text in _queue(client, queue, set(tags[prefix]), swept=swept):
            yield f"queue {queue.name!r}: {text}"


def trashed(client: redis.Redis, queue: QueueKeys) -> set[bytes]:
    """Return the tags in a queue's trash."""
    return _trashed(client, queue, sorted_set_members(client, queue.trash))


def _trashed(client: redis.Redis, queue: QueueKeys, numbers: Iterable[bytes]) -> set[bytes]:
    return {tag for number in numbers for tag in sorted_set_members(client, queue.trash_set(number))}


#: KEYS: places, trash, meta, wakeup, and all that has a TTL; ARGV: how many places.
LOOK = """
local places, found = tonumber(ARGV[1]), {}
for i = 1, places do found[i] = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES') end
found[places + 1] = redis.call('ZRANGE', KEYS[places + 1], 0, -1)
found[places + 2] = redis.call('HEXISTS', KEYS[places + 2], 'ttl')
found[places + 3] = redis.call('EXISTS', KEYS[places + 3])
for i = places + 4, #KEYS do found[i] = redis.call('PTTL', KEYS[i]) end
return found
"""


def _look(client: redis.Redis, queue: QueueKeys) -> tuple[Places, bool, bool, list[int]]:
    """Return the places, whether the queue is transient and has a wakeup, and the TTLs of its keys; mostly in one round trip."""
    sets = [getattr(queue, place) for place in PLACES]
    keys = [*sets, queue.trash, queue.meta, queue.wakeup, *queue.structure()]
    replies: list[Any] = list(client.eval(LOOK, len(keys), *keys, len(sets)))
    pairs = [iter(replies.pop(0)) for _ in sets]
    places: Places = {place: {tag: float(next(pair)) for tag in pair} for place, pair in zip(PLACES, pairs, strict=True)}
    places[TRASH] = dict.fromkeys(_trashed(client, queue, replies.pop(0)), 0.0)
    return places, bool(replies.pop(0)), bool(replies.pop(0)), replies


def _queue(client: redis.Redis, queue: QueueKeys, tags: set[bytes], *, swept: bool) -> Iterator[str]:
    places, transient, wakeup, ttls_ms = _look(client, queue)
    hashes = {}
    for item in _hashes(client, queue, tags):
        if item.tag.startswith(STAGED):
            if item.ttl_ms < 0:
                yield f"the staged body {item.tag!r} never expires"
            continue
        hashes[item.tag] = item
        # Memory is freed by settling, never by a TTL; what a transient queue holds goes with it.
        if (item.ttl_ms >= 0) != transient:
            yield f"{item.tag!r} has a TTL of {item.ttl_ms} ms in a {'transient' if transient else 'lasting'} queue"
    for tag in sorted(hashes.keys() | {tag for members in places.values() for tag in members}):
        where = [place for place in places if tag in places[place]]
        if tag not in hashes and where == ["trash"]:
            # Acked after its queue was deleted.
            continue
        if tag not in hashes:
            yield f"{tag!r} is in {where} and has no hash"
        elif len(where) != 1:
            yield f"{tag!r} is in {where or 'no set'}"
        else:
            yield from (f"{tag!r} in {where[0]} {text}" for text in _message(hashes[tag], where[0], places))
    yield from _keys(queue, ttls_ms, transient=transient)
    if swept and places["ready"] and not wakeup:
        yield f"{len(places['ready'])} ready messages and no wakeup"


def _message(item: _Hash, place: str, places: Places) -> Iterator[str]:
    if not item.has_payload:
        yield "has no payload"
    if place in ("delayed", "index") and item.score is None:
        yield "has lost its place (score)"
    if place in ("ready", "held") and item.score is not None:
        yield "still has the score of a message that is delayed or claimed"
    if place in ("ready", "held") and item.delay is not None:
        yield "still has the delay of a message that waits"
    if place == "index" and (item.owner is None or item.claim is None):
        yield "has no holder or no claim number"
    if place in ("ready", "delayed", "dead", "held") and item.owner is not None:
        yield f"still has the holder {item.owner!r}"
    # One that expires may be due before its eta; one that was sent back waits, and keeps the place that it had.
    # After a step of the clock back it stands later than its eta, behind what was published before.
    moved = item.expires is not None or item.claim is not None
    if place == "delayed" and not moved and item.score is not None and int(item.score) % LEVEL < int(places[place][item.tag]):
        yield f"has eta {places[place][item.tag]:.0f} and score {item.score!r}"


def _keys(queue: QueueKeys, ttls_ms: list[int], *, transient: bool) -> Iterator[str]:
    # The list of consumers does in any queue.
    by_itself = {queue.consumers}
    if ttls_ms[0] == -2:
        # The queue was deleted, and its consumers are told.
        by_itself.add(queue.schedule_wakeup)
    passed_on = {queue.wakeup, queue.schedule_wakeup}
    for key, ttl_ms in zip(queue.structure(), ttls_ms, strict=True):
        by_itself_now = key in by_itself or (key in passed_on and ttl_ms <= FORWARDED_WAKEUP_MS)
        if ttl_ms >= 0 and not transient and not by_itself_now:
            yield f"{key!r} expires in {ttl_ms} ms"
        # What else is left when the record has expired is cleared away by a janitor.
        if ttl_ms == -1 and transient and key == queue.meta:
            yield f"the record {key!r} of a transient queue never expires"


#: KEYS: what the messages' keys begin with; ARGV: how many fields, the fields, the tags.
HASHES = """
local fields, found = tonumber(ARGV[1]), {}
for i = fields + 2, #ARGV do
  local key = KEYS[1] .. ARGV[i]
  local values = redis.call('HMGET', key, unpack(ARGV, 2, fields + 1))
  found[#found + 1] = { redis.call('PTTL', key), redis.call('HEXISTS', key, 'payload'), values }
end
return found
"""


def _hashes(client: redis.Redis, queue: QueueKeys, tags: Iterable[bytes]) -> Iterator[_Hash]:
    left = iter(tags)
    while page := list(islice(left, PAGE)):
        found: Any = client.eval(HASHES, 1, queue.message, len(FIELDS), *FIELDS, *page)
        for tag, (ttl_ms, has_payload, fields) in zip(page, found, strict=True):
            yield _Hash(tag, ttl_ms, bool(has_payload), *fields)
