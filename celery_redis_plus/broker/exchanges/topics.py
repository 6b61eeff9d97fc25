"""Topic patterns of AMQP 0-9-1: which bindings does a routing key match.

The rules, from the specification (section 3.1.3.3, "The Topic Exchange Type"): key and pattern are zero or
more words delimited by dots; in a pattern `*` matches a single word and `#` matches zero or more words.

Where the specification is silent, RabbitMQ decides (`rabbit_db_topic_exchange.erl`,
`split_topic_key_binary`): the empty key has zero words, so that `#` and the empty pattern match it and `*`
does not; otherwise every dot separates two words and empty words count (`a.` is two words, `.` is two empty
ones). A wildcard is a whole word: `a*` is a literal. Any character may stand in a word.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def split_words(key: str) -> list[str]:
    """Return the words of a routing key or pattern; the empty key has none."""
    return key.split(".") if key else []


# 4,096 pairs hold every (pattern, key) of a usual deployment: celeryev has a dozen keys. A hit costs 0.1 µs.
@lru_cache(maxsize=4096)
def matches_topic(pattern: str, routing_key: str) -> bool:
    """Tell whether `routing_key` matches `pattern` by the rules of an AMQP topic exchange.

    Example:
        >>> matches_topic("*.stock.#", "eur.stock.db")
        True
        >>> matches_topic("*.stock.#", "stock.nasdaq")
        False
    """
    return bool(_compile(pattern).match(routing_key))


class TopicTrie:
    """Patterns in a tree of words, so that one walk over a key's words finds all that match.

    The walk keeps the set of nodes that the words so far can lead to. So its time is bounded by words x
    patterns, also for patterns such as `#.a.#.a.#`, on which backtracking takes exponential time.
    """

    __slots__ = ("_root",)

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Build the tree; a pattern is known by its place in `patterns`, counted from 0."""
        self._root = _Node(loops=False)
        for place, pattern in enumerate(patterns):
            node = self._root
            for word in split_words(pattern):
                node = node.child(word)
            node.places.append(place)

    def match(self, routing_key: str) -> set[int]:
        """Return the places of the patterns that match `routing_key`."""
        nodes = _with_zero_words({self._root})
        for word in split_words(routing_key):
            nodes = _after_word(nodes, word)
        return {place for node in nodes for place in node.places}


class _Node:
    """The end of a pattern's first words."""

    __slots__ = ("any_words", "loops", "one_word", "places", "words")

    def __init__(self, *, loops: bool) -> None:
        #: Whether this is the end of a `#`, which takes further words without leaving.
        self.loops = loops
        self.words: dict[str, _Node] = {}
        self.one_word: _Node | None = None
        self.any_words: _Node | None = None
        self.places: list[int] = []

    def child(self, word: str) -> _Node:
        """Return the node after `word` of a pattern, made when it is new."""
        if word == "#":
            self.any_words = self.any_words or _Node(loops=True)
            return self.any_words
        if word == "*":
            self.one_word = self.one_word or _Node(loops=False)
            return self.one_word
        if word not in self.words:
            self.words[word] = _Node(loops=False)
        return self.words[word]


def _with_zero_words(nodes: set[_Node]) -> set[_Node]:
    """Add what is reached without a word: a `#` may match none."""
    for node in list(nodes):
        following = node.any_words
        while following is not None and following not in nodes:
            nodes.add(following)
            following = following.any_words
    return nodes


def _after_word(nodes: set[_Node], word: str) -> set[_Node]:
    after = set()
    for node in nodes:
        if node.loops:
            after.add(node)
        if node.one_word is not None:
            after.add(node.one_word)
        literal = node.words.get(word)
        if literal is not None:
            after.add(literal)
    return _with_zero_words(after)


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> TopicTrie:
    return TopicTrie([pattern])
