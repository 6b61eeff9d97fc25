"""AMQP field tables (the `arguments` of declarations and bindings): compared, and stored as canonical text.

Two tables that say the same have the same text, so that the text can be a field of a Redis hash. What JSON
has no form for stands in an object with one key: `{"!bytes": base64}`, `{"!time": ISO 8601}`,
`{"!decimal": "1.50"}`; a table of the user's that looks like one of these is wrapped as `{"!table": …}`. The
text is ASCII whatever the names hold.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite

from celery_redis_plus.errors import InvalidArgument

#: The object key that marks each kind of value, and how its text is read back.
_READERS: dict[str, Callable[[str], object]] = {
    "!bytes": b64decode,
    "!time": datetime.fromisoformat,
    "!decimal": Decimal,
}
_TABLE = "!table"


def to_text(value: object) -> str:
    """Return the canonical, compact JSON text of `value`, a tree that `pack` has made or plain JSON data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def pack(value: object, where: str) -> object:
    """Return `value` as data that JSON can hold.

    Args:
        value: what stands in a table: None, bool, int, float, str, bytes, datetime, Decimal, a list or a
            table of these (the types of AMQP 0-9-1's field tables, section 4.2.1).
        where: the value's owner, for the error's text, such as `argument 'x-expires' of queue 'q'`.

    Raises:
        InvalidArgument: a value of another type, a number that is not finite, or a key that is no string.
    """
    if isinstance(value, list | tuple):
        return [pack(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        table = {key: pack(item, where) for key, item in value.items()}
        return {_TABLE: table} if _looks_packed(table) else table
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    marked = _marked(value)
    if marked is not None:
        return marked
    raise InvalidArgument(
        f"{where} is {value!r}; allowed are None, bool, finite numbers, str, bytes, datetime, Decimal, "
        "and lists or tables (with str keys) of these"
    )


def unpack(data: object) -> object:
    """Return what `pack` was given (tuples come back as lists, bytearrays as bytes)."""
    if isinstance(data, list):
        return [unpack(item) for item in data]
    if not isinstance(data, dict):
        return data
    if not _looks_packed(data):
        return {key: unpack(item) for key, item in data.items()}
    ((mark, inner),) = data.items()
    if mark == _TABLE:
        return {key: unpack(item) for key, item in inner.items()}
    return _READERS[mark](inner)


def pack_table(arguments: Mapping[str, object] | None, owner: str) -> dict[str, object]:
    """Return a whole table as JSON data; None is the empty table.

    Raises:
        InvalidArgument: as `pack`; the text names the argument and `owner`, such as `queue 'q'`.
    """
    table = arguments or {}
    for key in table:
        if not isinstance(key, str):
            raise InvalidArgument(f"argument {key!r} of {owner} has a name that is no string")
    return {key: pack(value, f"argument {key!r} of {owner}") for key, value in table.items()}


def unpack_table(data: object) -> dict[str, object]:
    """Return the table that `pack_table` was given.

    Raises:
        InvalidArgument: `data` is no table, or none that `pack_table` made.
    """
    if not isinstance(data, dict):
        raise InvalidArgument(f"stored arguments are {data!r}; expected a JSON object")
    try:
        return {key: unpack(value) for key, value in data.items()}
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InvalidArgument(f"stored arguments {data!r} hold a value that cannot be read: {error}") from error


def same_value(one: object, other: object) -> bool:
    """Tell whether two values of a table are equal as RabbitMQ sees them: 1 equals 1.0, neither equals true.

    Python says `True == 1`; Erlang, whose `==` RabbitMQ uses here, keeps booleans and numbers apart.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return bool(one == other)


def first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    """Return the first key, by name, whose values differ; None as a value is as good as no key."""
    for key in sorted(one.keys() | other.keys()):
        if not same_value(one.get(key), other.get(key)):
            return key
    return None


def inequivalent(argument: str, owner: str, received: object, current: object) -> str:
    """Return the sentence of a PRECONDITION_FAILED, in the words that RabbitMQ's users search for."""
    change = f"received {_shown(received)} but current is {_shown(current)}"
    return f"inequivalent arg {argument!r} for {owner}: {change}"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _marked(value: object) -> dict[str, str] | None:
    """Return the form of a value that JSON has no form for; None: it is of no known type."""
    if isinstance(value, bytes | bytearray):
        return {"!bytes": b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"!time": value.isoformat()}
    if isinstance(value, Decimal) and value.is_finite():
        return {"!decimal": str(value)}
    return None


def _looks_packed(table: Mapping[str, object]) -> bool:
    return len(table) == 1 and next(iter(table)) in (*_READERS, _TABLE)
