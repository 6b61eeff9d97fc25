"""The consumer argument `x-filter`: which messages of a queue a consumer takes, by their headers, as a headers exchange does."""

from __future__ import annotations

import json
from collections.abc import Mapping

from celery_redis_plus.errors import InvalidArgument

#: `x-match` -> whether all headers have to match, or any of them.
MATCHES = ("all", "any")
#: Numbers that Lua keeps exact.
MAX_NUMBER = 2**53


def pack_filter(value: object, owner: str) -> str:
    """Return a filter as `lua/include/match_headers.lua` reads it.

    Args:
        value: header -> value; None asks only that the header is there. `x-match` is `all` (as without it) or `any`.
        owner: whose argument it is, for errors.

    Raises:
        InvalidArgument: it is no such table; names what is allowed.
    """
    what = f"argument 'x-filter' of {owner} is {value!r:.200}"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidArgument(f"{what}; allowed is a dict of headers, and 'x-match': 'all' or 'any'")
    wanted = {name: wish for name, wish in value.items() if name != "x-match"}
    match = value.get("x-match", "all")
    if match not in MATCHES or not wanted:
        raise InvalidArgument(f"{what}; allowed are one header or more, with 'x-match' 'all' or 'any'")
    for name, wish in wanted.items():
        if not (_is_text(name) and (not isinstance(wish, str) or _is_text(wish))):
            raise InvalidArgument(f"{what}; allowed are names and values that UTF-8 can encode: no lone surrogates")
        if not _is_comparable(wish):
            raise InvalidArgument(
                f"{what}; allowed as the value of {name!r} are a str, true, false, None and a number up to 2^53"
            )
    return json.dumps([match, *([name, _in_json(name), wish] for name, wish in wanted.items())])


def _is_comparable(value: object) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= MAX_NUMBER
    return value is None or isinstance(value, str | bool)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_json(name: str) -> str:
    """Return how a header's name stands in JSON, where it stands so in any: without escapes."""
    plain = name.isascii() and name.isprintable() and not set(name) & set('"\\/')
    return f'"{name}":' if plain else ""
