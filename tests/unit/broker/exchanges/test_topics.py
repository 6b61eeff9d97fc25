"""Topic patterns by AMQP 0-9-1's rules, against the specification's cases and a reference of three lines."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redis_plus.broker.exchanges.routing import TOPIC_CACHE_SIZE, Binding, RoutingTable
from celery_redis_plus.broker.exchanges.topics import TopicTrie, matches_topic, split_words


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        # AMQP 0-9-1, section 3.1.3.3
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "eur.stock.db", True),
        ("*.stock.#", "stock.nasdaq", False),
        # RabbitMQ tutorial 5
        ("*.orange.*", "quick.orange.rabbit", True),
        ("*.*.rabbit", "quick.orange.rabbit", True),
        ("lazy.#", "lazy.orange.new.rabbit", True),
        ("*.orange.*", "quick.orange.new.rabbit", False),
        ("*.orange.*", "orange", False),
        ("lazy.#", "lazy", True),
        ("lazy.#", "lazier.orange", False),
        # `#` takes zero words, anywhere
        ("#", "a.b.c", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x.y", False),
        ("#.b", "b", True),
        ("#.#", "a", True),
        ("#.a.#.a.#", "a", False),
        ("#.a.#.a.#", "a.a", True),
        ("*.#", "a", True),
        # `*` takes exactly one
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.*.#", "a", False),
        ("#.*", "a.b.c", True),
        # the empty key has no words
        ("#", "", True),
        ("#.#", "", True),
        ("", "", True),
        ("*", "", False),
        ("*.#", "", False),
        ("", "a", False),
        ("a", "", False),
        # empty words are words
        ("a.*", "a.", True),
        ("*.*", ".", True),
        ("*", ".", False),
        ("a.*.b", "a..b", True),
        ("a..b", "a..b", True),
        ("a.b", "a..b", False),
        ("a.#.b", "a..b", True),
        ("a.", "a", False),
        # a wildcard is a whole word; all else is literal
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a#", "ab", False),
        ("**", "a", False),
        ("a.b", "aXb", False),
        ("A.b", "a.b", False),
        ("a+.[b]", "a+.[b]", True),
        ("a+.[b]", "aa.b", False),
        # any character may stand in a word
        ("*.é\n", "\x00.é\n", True),
        # wildcards in a key are plain words
        ("a.b", "a.*", False),
        ("a.*", "a.#", True),
    ],
)
def test_topic_pattern(pattern, key, expected):
    assert matches_topic(pattern, key) is expected
    assert RoutingTable("topic", [Binding("q", pattern)]).route(key) == (("q",) if expected else ())


def reference(pattern: list[str], words: list[str]) -> bool:
    """Say the rules of AMQP 0-9-1 with as few words as possible."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return reference(pattern[1:], words) or (bool(words) and reference(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and reference(pattern[1:], words[1:])


words = st.lists(st.sampled_from(["a", "b", "", "ab"]), max_size=6).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "#"]), max_size=6).map(".".join)


@given(patterns, words)
def test_topic_pattern_agrees_with_the_reference(pattern, key):
    assert matches_topic(pattern, key) == reference(split_words(pattern), split_words(key))


@given(st.lists(patterns, max_size=12), words)
def test_topic_table_finds_exactly_the_patterns_that_match_alone(several, key):
    bindings = [Binding(f"q{place}", pattern) for place, pattern in enumerate(several)]
    expected = tuple(binding.queue for binding in bindings if matches_topic(binding.routing_key, key))
    table = RoutingTable("topic", bindings)
    assert table.route(key) == expected
    assert table.route(key) == expected, "the remembered answer"


def test_topic_with_many_wildcards_takes_no_exponential_time():
    trie = TopicTrie([".".join(["#", "a"] * 30)])
    started = time.process_time()
    assert trie.match(".".join(["a"] * 29 + ["b"] * 300)) == set()
    assert time.process_time() - started < 1


def test_topic_table_routes_right_also_beyond_what_it_remembers():
    table = RoutingTable("topic", [Binding("even", "*.0"), Binding("all", "#")])
    for number in [*range(2 * TOPIC_CACHE_SIZE), *range(5)]:
        assert table.route(f"{number}.{number % 2}") == (("all",) if number % 2 else ("even", "all"))
