"""Reads, composes and names the Lua scripts of the top-level folder `lua/`.

A script is one transition of a message's or queue's state; `-- @include name` is replaced by `lua/include/name.lua`, once per
script. Includes are resolved here and not on the server, so that a script stays one EVALSHA.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from celery_redis_plus.errors import CeleryRedisPlusError

INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


class ScriptError(CeleryRedisPlusError):
    """A script or an include is missing from the installation: reinstall the package, it is damaged."""


class Script(NamedTuple):
    """A Lua script as the server knows it."""

    name: str
    source: str
    #: SHA-1 of the source in hexadecimal: the name EVALSHA calls it by.
    sha: bytes

    @classmethod
    def of(cls, name: str, source: str) -> Script:
        """Return a script with its hash."""
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode())

    def __repr__(self) -> str:
        """Show its name: the source is long."""
        return f"<Script {self.name}>"


@cache
def _folder() -> str:
    """Return where the scripts are installed; from a source tree that is the top-level folder."""
    return str(import_module("celery_redis_plus.lua").__path__[0])


def _read(path: str) -> str:
    try:
        # Half the time of `importlib.resources`, and of pathlib: a first publish reads thirty files.
        with open(f"{_folder()}/{path}", encoding="utf-8") as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError as error:
        raise ScriptError(f"Lua file {path!r} is not installed beside celery_redis_plus") from error


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in Path(_folder()).glob("*.lua"))


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
    found = Script.of(name, compose(_read(f"{name}.lua")))
    _names[found.sha] = name
    return found


#: Names of the scripts that were read, by their hash.
_names: dict[bytes, str] = {}


def name_of_sha(sha: bytes) -> str:
    """Return the name of the script that EVALSHA calls `sha`; of one that is none of ours, the hash."""
    return _names.get(sha) or sha.decode(errors="replace")
