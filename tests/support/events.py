"""Reads lifecycle events as `events.py` says they are written, and checks them against the server and the state machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from celery_redis_plus.events import (
    CLAIMED,
    DEAD,
    DELAYED,
    FIELD,
    GONE,
    NEW,
    READY,
    TRANSITIONS,
    Event,
    decode,
    entry_id,
)
from tests.support.invariants import trashed
from tests.support.replies import sorted_set_members, stream_entries

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.keys import Keys, QueueKeys

#: The flag of a tag whose message's events are written (`lua/include/tag_flags.lua`), and its place in the tag.
LOGGED, FLAG = {"-", "="}, slice(19, 20)
#: Where a message stands -> its state. (What waits for a dead-letter exchange is dead.)
STATES = {"ready": READY, "delayed": DELAYED, "index": CLAIMED, "dead": DEAD, "dlx_outbox": DEAD}


def illegal_steps(events: Iterable[str]) -> list[str]:
    """Return what is wrong with one message's events, in order: `["acked after acked"]`; empty is a legal path."""
    state, last, found = NEW, "nothing", []
    for event in events:
        transition = TRANSITIONS.get(event)
        if transition is None:
            found.append(f"unknown event {event}")
            continue
        if state not in transition.sources:
            found.append(f"{event} after {last}")
        state, last = transition.target, event
    return found


def events_of(client: redis.Redis, keys: Keys, queue: str) -> list[Event]:
    """Return the queue's events in their order."""
    return [decode(values[FIELD]) for _, values in stream_entries(client, keys.queue(queue).events)]


def paths_of(client: redis.Redis, keys: Keys, queue: str) -> dict[str, list[Event]]:
    """Return each message's events."""
    paths: dict[str, list[Event]] = {}
    for event in events_of(client, keys, queue):
        paths.setdefault(event.id, []).append(event)
    return paths


def event_violations(client: redis.Redis, keys: Keys, queue: str) -> list[str]:
    """Return what is wrong with the events of a queue from which nothing was trimmed and that nobody changes meanwhile."""
    return list(_violations(client, keys, queue))


def _violations(client: redis.Redis, keys: Keys, queue: str) -> Iterator[str]:
    of = keys.queue(queue)
    last: dict[int, int] = {}
    for entry, _ in stream_entries(client, of.events):
        epoch, n = entry_id(entry)
        if n != last.get(epoch, 0) + 1:
            yield f"{queue}: {epoch}-{n} comes after {epoch}-{last.get(epoch, 0)}"
        last[epoch] = n
    standing = _standing(client, of)
    trash = {tag.decode() for tag in trashed(client, of)}
    paths = paths_of(client, keys, queue)
    for tag, path in paths.items():
        names = [event.event for event in path]
        yield from (f"{queue}: {tag}: {text} in {names}" for text in illegal_steps(names))
        state = TRANSITIONS[names[-1]].target if names[-1] in TRANSITIONS else NEW
        stands = standing.get(tag, GONE)
        if state != stands and tag not in trash:
            yield f"{queue}: {tag} is {stands} and its events say {state}: {names}"
    for tag in standing.keys() - paths.keys():
        if tag[FLAG] in LOGGED:
            yield f"{queue}: {tag} is {standing[tag]} and has no events"


def _standing(client: redis.Redis, of: QueueKeys) -> dict[str, str]:
    return {tag.decode(): state for place, state in STATES.items() for tag in sorted_set_members(client, getattr(of, place))}
