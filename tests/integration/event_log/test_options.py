"""The options `event_log_*`, from a connection to the record that the scripts read."""

from __future__ import annotations

import json

import kombu
import pytest

from celery_redis_plus.keys import Keys
from tests.support.inbox import declare, publish

KEYS = Keys().queue("q")
OPTIONS = {
    "event_log": True,
    "event_log_sample": 0.25,
    "event_log_events": ("published", "acked"),
    "event_log_payload": True,
    "event_log_index": True,
    "event_log_maxlen": 10,
    "event_log_hard_maxlen": 30,
    "event_log_max_age": 60,
}
#: The same as the scripts have it: thousandths, and milliseconds.
RECORD = {
    "permille": 250,
    "chosen": ",published,acked,",
    "payload": True,
    "index": True,
    "maxlen": 10,
    "hard_maxlen": 30,
    "age": 60_000,
}


@pytest.mark.parametrize(("given", "stored"), [({}, {}), ({"event_log_hard_maxlen": 5}, {"hard_maxlen": 10})])
def test_each_holds_for_the_queues_that_a_connection_declares(given, stored, broker_url, redis_client):
    with kombu.Connection(broker_url, transport_options=OPTIONS | given) as connection:
        declare(connection.default_channel, "q")
    record = json.loads(redis_client.hget(KEYS.meta, "event_log"))
    assert {name: record[name] for name in RECORD} == RECORD | stored


def test_the_event_of_a_publish_has_the_payload_where_that_is_wanted(broker_url, redis_client):
    with kombu.Connection(broker_url, transport_options=OPTIONS | {"event_log_sample": 1}) as connection:
        declare(connection.default_channel, "q")
        publish(connection.default_channel, "q", "milk")
    ((_, fields),) = redis_client.xrange(KEYS.events)
    assert fields[b"p"].endswith(b"\nmilk")
