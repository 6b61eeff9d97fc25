"""The JSON of a message's headers and properties, with kombu's own conversions for what JSON has no form for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from kombu.utils import json as kombu_json

#: What marks an object that kombu's encoder has converted (`kombu/utils/json.py`).
CONVERTED = b'"__type__"'

_decode = json.JSONDecoder().decode


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return an encoder that is made once: it takes an object and its depth, and returns the parts of its JSON.

    The standard library's makes its inner C encoder anew for every call, which costs as much as encoding our few fields; where
    there is none (PyPy) its own way is taken.
    """
    default = kombu_json.JSONEncoder().default
    slow = json.JSONEncoder(separators=(",", ":"), default=default)
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # not in typeshed
    if make is None:
        return lambda data, _: slow.iterencode(data)
    fast: Callable[[Any, int], Iterable[str]] = make(
        None, default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True
    )
    return fast


_encode = _encoder()


def dump(data: dict[str, Any]) -> bytes:
    """Return `data` as one line of compact ASCII JSON.

    Raises:
        TypeError: a value of a type that kombu has no conversion for.
    """
    return "".join(_encode(data, 0)).encode("ascii")


def load(line: bytes) -> dict[str, Any]:
    """Return what `dump` was given. kombu's object hook costs as much as the parsing, so it runs only where it is needed."""
    if CONVERTED in line:
        loaded: dict[str, Any] = kombu_json.loads(line)
        return loaded
    decoded: dict[str, Any] = _decode(line.decode("ascii"))
    return decoded
