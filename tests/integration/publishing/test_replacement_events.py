"""What the event log has of messages that take the place of others."""

from __future__ import annotations

from celery_redis_plus.events import read_entry, shown_state
from tests.support.events import illegal_steps
from tests.support.inbox import declare, publish
from tests.support.stored import keys_of

KEYS = keys_of("q")


def test_its_events_are_a_legal_path(connect, redis_client):
    channel = connect(event_log=True).channel()
    declare(channel, "q")
    of = {"x-deduplication-id": "one", "x-deduplication-scope": "until-started", "x-deduplication-conflict": "replace"}
    for delay in (0, 600_000, 0):
        publish(channel, "q", delay, headers={**of, "x-deduplication-delay": delay})
    paths = {}
    for _, fields in redis_client.xrange(KEYS.events):
        event = read_entry([part for pair in fields.items() for part in pair])
        paths.setdefault(event.id, []).append(event)
    found = [[(event.event, event.reason) for event in path] for path in paths.values()]
    replaced = ("cancelled", "replaced")
    assert found == [
        [("published", None), replaced], [("published", None), ("delayed", None), replaced], [("published", None)],
    ]  # fmt: skip
    assert [illegal_steps([event.event for event in path]) for path in paths.values()] == [[], [], []]
    assert shown_state("gone", event="cancelled", reason="replaced", tried=False) == "MOVED"
    assert redis_client.hget(KEYS.meta, "cancelled") == b"2"
