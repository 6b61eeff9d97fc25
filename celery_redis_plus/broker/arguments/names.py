"""What queues, exchanges and message groups may be called, and what a routing key and a table of arguments may be."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import encode_name

#: Names the group of a message: a header, or a property. Scripts read it from the stored message (`lua/include/groups.lua`).
GROUP = "x-message-group"
#: Bytes of UTF-8. AMQP allows 255; 4 KB leave room for 1,000 characters of any script and keep keys handy.
MAX_NAME = 4096
#: What makes a pattern of a name.
_WILDCARDS = frozenset("*?[")


def check_name(what: str, name: object, *, least: int = 1, error: type[InvalidArgument] = InvalidArgument) -> str:
    """Return `name` if `what` may be called so: text of `least` to `MAX_NAME` bytes.

    Braces, colons, glob characters, dots, spaces, newlines and NUL are all fine.

    Raises:
        error: no str, too short or too long in UTF-8, or with a lone surrogate, which has no bytes. (Those that `os.fsdecode`
            makes of undecodable bytes are fine.)
    """
    allowed = f"allowed is a str of {least} to {MAX_NAME} bytes of UTF-8"
    if not isinstance(name, str):
        raise error(f"{what} {name!r} is of type {type(name).__name__}; {allowed}")
    if len(name) < least:
        raise error(f"{what} '' is empty; {allowed}")
    try:
        size = len(encode_name(name))
    except UnicodeEncodeError as cause:
        raise error(f"{what} {name!r} has a lone surrogate; {allowed}") from cause
    if size > MAX_NAME:
        raise error(f"{what} {name[:40]!r}… has {size} bytes; {allowed}")
    return name


def check_exchange_name(name: object) -> str:
    """Return `name` if an exchange may be called so. Raises InvalidArgument."""
    return check_name("exchange name", name)


def check_routing_key(key: object) -> str:
    """Return a routing key if it may be one; it may be empty. Raises InvalidArgument."""
    return check_name("routing key", key, least=0)


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern of names rather than a name."""
    return not _WILDCARDS.isdisjoint(text)


def is_meant(name: str, wanted: str) -> bool:
    """Return whether `wanted`, a name or a pattern with `*`, `?` and `[…]`, means a name."""
    return name == wanted or fnmatchcase(name, wanted)


def check_table(owner: str, arguments: object) -> Mapping[str, Any]:
    """Return the arguments of `owner` if they are a table, the empty one for None. Raises InvalidArgument."""
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise InvalidArgument(f"'arguments' of {owner} is {arguments!r} of type {kind}; allowed is a dict of names and values")
    return arguments


def check_group(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """Check what names a message's group.

    Raises:
        InvalidArgument: it is neither a text nor a whole number, so that the message would be of no group.
    """
    for named in (headers.get(GROUP), properties.get(GROUP)):
        if named is not None and (isinstance(named, bool) or not isinstance(named, str | int) or named == ""):
            raise InvalidArgument(
                f"{GROUP!r} of a message is {named!r:.100}; allowed is a text that is not empty, or a whole number"
            )
