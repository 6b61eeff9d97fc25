"""The JSON in which a message's headers and properties are stored, and what of them only one process may see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kombu.compression import decompress
from kombu.utils import json as kombu_json

#: The property of a delivered message that says which delivery its task may settle. It is of one delivery: never published.
TASK_DELIVERY = "redisplus_delivery"
#: The property of a delivered message from which its fencing token is made: tag and claim number, then its queue.
#: Never published, either.
TASK_FENCE = "redisplus_fence"
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


def dump(envelope: dict[str, Any]) -> bytes:
    """Return an envelope as one line of compact ASCII JSON.

    Raises:
        TypeError: a value of a type that kombu has no conversion for.
    """
    return "".join(_encode(envelope, 0)).encode("ascii")


def load(line: bytes) -> dict[str, Any]:
    """Return what `dump` was given. kombu's object hook costs as much as the parsing, so it runs only where it is needed."""
    if CONVERTED in line:
        envelope: dict[str, Any] = kombu_json.loads(line)
    else:
        envelope = _decode(line.decode("ascii"))
    return envelope


def revive(value: object) -> object:
    """Return the object that kombu's JSON encoder has converted to `value`, such as the bytes of a body.

    Raises:
        ValueError, TypeError: a type that kombu does not know, or another object than it writes for that type.
    """
    return kombu_json.loads(json.dumps(value))


#: Keys of a task's body in Celery's message protocol 1 (`celery/app/amqp.py:AMQP.as_task_v1`). All serializers write them as they
#: are.
_PROTOCOL_1 = (b"task", b"kwargs", b"expires", b"callbacks", b"errbacks", b"timelimit", b"taskset")


def is_protocol_1(headers: Mapping[str, Any], body: bytes) -> bool:
    """Return whether a message is a task of Celery's message protocol 1, whose `expires` only a worker reads: in its body."""
    if "task" in headers:
        return False
    if "compression" in headers:
        # What cannot be decompressed is for its consumer to refuse.
        with suppress(Exception):
            body = decompress(body, headers["compression"])
    return all(key in body for key in _PROTOCOL_1)
