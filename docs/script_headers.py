"""Reads from the headers of the Lua files which keys each script takes, and which it may write.

A header names a key by its kind, the word before `:{Q}`, with its type in brackets: `3 meta (hash)`. The mark `read`, as in
`(hash, read)`, says that the script does not write it. An include names keys that it derives by itself in a line
`-- KEYS of its own`; they count for each script that includes it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from key_descriptions import FANOUT, OF_AN_EXCHANGE, PRODUCER, KeyDescription

from celery_redis_plus.scripts import INCLUDE, script_names

#: A key in a header: its kind, and in brackets its type, after a comma `read`.
_NAMED = re.compile(
    r"(?<![\w.])(\w+)(?: of \w+(?: \w+){0,2})? \((?:prefix of a )?(string|hash|set|zset|stream)s?(?:: [\w ]+)?(, read)?\)"
)
_HEADER = re.compile(r"^-- KEYS(?: of its own)?  (.*?)(?=^-- (?:ARGV|Returns|@)|^(?!--))", re.MULTILINE | re.DOTALL)
_LUA = "celery_redis_plus.lua"


@cache
def keys_in_header(path: str) -> tuple[tuple[str, str, bool], ...]:
    """Return (kind, type, is it written) of each key that the header of a Lua file names."""
    source = resources.files(_LUA).joinpath(path).read_text(encoding="utf-8")
    text = " ".join(match[1] for match in _HEADER.finditer(source))
    return tuple((kind, type_, not read) for kind, type_, read in _NAMED.findall(text.replace("\n--", " ")))


@cache
def _included(path: str) -> frozenset[str]:
    source = resources.files(_LUA).joinpath(path).read_text(encoding="utf-8")
    paths = {f"include/{name}.lua" for name in INCLUDE.findall(source)}
    return frozenset(paths).union(*map(_included, paths))


@cache
def written_kinds(script: str) -> frozenset[str]:
    """Return the kinds of keys that a script may write."""
    source = resources.files(_LUA).joinpath(f"{script}.lua").read_text(encoding="utf-8")
    if source.startswith("#!lua flags=no-writes"):
        return frozenset()
    paths = (f"{script}.lua", *_included(f"{script}.lua"))
    return frozenset(kind for path in paths for kind, _, written in keys_in_header(path) if written)


def writers(description: KeyDescription) -> list[str]:
    """Return the scripts that may write a kind of key."""
    writing = [name for name in script_names() if description.kind in written_kinds(name)]
    if description.kind != PRODUCER:
        return writing
    # Queues and fanout exchanges have the same word for it.
    of_fanout = description in OF_AN_EXCHANGE
    return [name for name in writing if of_fanout == (FANOUT in {kind for kind, _, _ in keys_in_header(f"{name}.lua")})]
