"""Reads, composes and names the Lua scripts of the top-level folder `lua/`.

A script is one transition of a message's or queue's state; `-- @include name` is replaced by `lua/include/name.lua`, once per
script. Includes are resolved here and not on the server, so that a script stays one EVALSHA.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from celery_redis_plus.errors import CeleryRedisPlusError

INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


class ScriptError(CeleryRedisPlusError):
    """A script or an include is missing from the installation: reinstall the package, it is damaged."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script as the server knows it."""

    name: str
    source: str = field(repr=False)
    #: SHA-1 of the source in hexadecimal: the name EVALSHA calls it by.
    sha: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the hash."""
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest.encode())


def _read(path: str) -> str:
    file = resources.files("celery_redis_plus.lua").joinpath(path)
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ScriptError(f"Lua file {path!r} is not installed beside celery_redis_plus") from error


def compose(source: str, included: set[str] | None = None) -> str:
    """Return `source` with its includes put in, each one once.

    Raises:
        ScriptError: an include does not exist.
    """
    included = set() if included is None else included

    def put_in(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in included:
            return ""
        included.add(name)
        return compose(_read(f"include/{name}.lua"), included)

    return INCLUDE.sub(put_in, source)


@cache
def script(name: str) -> Script:
    """Return the script `lua/<name>.lua`, composed.

    Raises:
        ScriptError: the file or one of its includes does not exist.
    """
    found = Script(name, compose(_read(f"{name}.lua")))
    _names[found.sha] = name
    return found


#: Names of the scripts that were read, by their hash.
_names: dict[bytes, str] = {}


def name_of_sha(sha: bytes) -> str:
    """Return the name of the script that EVALSHA calls `sha`; of one that is none of ours, the hash."""
    return _names.get(sha) or sha.decode(errors="replace")
