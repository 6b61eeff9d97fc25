"""Which shard a queue is in, and the slots of the shards."""

from collections import Counter

import pytest

from celery_redis_plus.connection.cluster_address import SLOTS, one_slot_prefix, slot_of
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes


@pytest.mark.parametrize("prefix", ["", "shop:", "{shop}:", "a{b}c{d}", "unbalanced{", "}odd", "*[glob]\n\xe9"])
@pytest.mark.parametrize("shards", [2, 3, 6, 12, 64])
def test_each_of_as_many_nodes_has_one_shard(prefix, shards):
    prefixes = shard_prefixes(prefix, shards)
    assert prefixes[0] == prefix
    slots = [slot_of(one_slot_prefix(prefix)), *map(slot_of, prefixes[1:])]
    assert len({int(slot * shards / SLOTS) for slot in slots}) == shards
    # What a cluster would make of it.
    assert [one_slot_prefix(one) for one in prefixes[1:]] == list(prefixes[1:])


def test_the_shard_of_a_queue_never_changes():
    names = ("celery", "orders", "\xe9", "a{b}c", "orders.9", "orders.10", "7" * 1000, "")
    assert [shard_of(name, 3) for name in names] == [0, 2, 2, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("shards", [2, 3, 6, 7, 64])
def test_queues_that_differ_in_a_number_are_spread_evenly(shards):
    found = Counter(shard_of(f"orders.{number}", shards) for number in range(60))
    assert max(found.values()) <= -(-60 // shards)


def test_other_names_are_spread_by_chance():
    assert {shard_of(f"q{number}x", 6) for number in range(60)} == set(range(6))
    assert {shard_of(f"{name}-2024", 6) for name in "abcdefghijklmnopqrstuvwxyz"} == set(range(6))


def test_one_shard_is_the_prefix_itself():
    assert shard_prefixes("shop:", 1) == ("shop:",)
