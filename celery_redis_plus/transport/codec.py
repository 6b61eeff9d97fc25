"""The JSON of a message's headers and properties, with kombu's own conversions for what JSON has no form for."""

from __future__ import annotations

import json
from typing import Any

from kombu.utils import json as kombu_json

#: What marks an object that kombu's encoder has converted (`kombu/utils/json.py`).
CONVERTED = b'"__type__"'

_encode = json.JSONEncoder(separators=(",", ":"), default=kombu_json.JSONEncoder().default).encode
_decode = json.JSONDecoder().decode


def dump(data: dict[str, Any]) -> bytes:
    """Return `data` as one line of compact ASCII JSON.

    Raises:
        TypeError: a value of a type that kombu has no conversion for.
    """
    return _encode(data).encode("ascii")


def load(line: bytes) -> dict[str, Any]:
    """Return what `dump` was given. kombu's object hook costs as much as the parsing, so it runs only where it is needed."""
    if CONVERTED in line:
        loaded: dict[str, Any] = kombu_json.loads(line)
        return loaded
    decoded: dict[str, Any] = _decode(line.decode("ascii"))
    return decoded
