from __future__ import annotations

import pytest
from redis.crc import key_slot

from celery_redis_plus.keys import Keys, hash_tag

NAMES = [
    "celery",
    "a:b",
    "{tag}",
    "}",
    "}{",
    "{",
    "{}",
    "%",
    "%7D",
    "}x",
    "x}",
    "a{b}c",
    "*[?",
    "line\nbreak",
    "ż",
    "x" * 1024,
    " ",
]


def spelled(keys):
    events = [keys.events, keys.events_meta, keys.events_readers]
    return [*keys.structure(), *events, keys.message + b"TAG", keys.producer + b"PID", keys.producer + b"PID:7"]


@pytest.mark.parametrize("prefix", ["", "app:", "ż"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_all_keys_of_a_queue_share_a_cluster_slot_and_start_with_the_prefix(name, prefix):
    keys = spelled(Keys(prefix).queue(name))
    assert len({key_slot(key) for key in keys}) == 1
    assert all(key.startswith(prefix.encode()) for key in keys)


def test_no_two_names_share_a_key():
    every = [key for name in NAMES for key in spelled(Keys().queue(name))]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("name", "tag"), [("celery", "celery"), ("}a", "%7Da"), ("%a", "%25a"), ("a}%", "a}%"), ("%7D", "%257D")]
)
def test_only_a_leading_brace_or_percent_is_escaped(name, tag):
    assert hash_tag(name) == tag


def test_queues_of_different_names_are_spread_over_slots():
    assert len({key_slot(Keys().queue(f"queue {number}").ready) for number in range(100)}) > 90


def test_undecodable_bytes_of_a_name_come_through():
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert Keys().queue(name).ready == b"queue:{\xff\xfe}"


def test_keys_of_a_queue_are_made_once():
    keys = Keys()
    assert keys.queue("q") is keys.queue("q")


@pytest.mark.parametrize("exchange", ["e", "}e", "a{b}"])
def test_an_exchange_has_keys_of_its_own(exchange):
    keys = Keys("app:")
    fanout = keys.fanout(exchange, "/0.")
    assert fanout.stream == b"app:/0." + exchange.encode()
    assert len({*fanout.everything(), fanout.producer, keys.binding(exchange), keys.client_wakeup(exchange)}) == 10


def test_the_keys_of_a_fanout_exchange_share_a_slot_where_its_name_has_no_braces():
    fanout = Keys().fanout("e", "/0.")
    assert len({key_slot(key) for key in (*fanout.everything(), fanout.producer + b"PID")}) == 1
