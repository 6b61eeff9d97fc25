"""Stored messages that no publisher of ours has written, or whose values have types that no reader expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kombu.utils.json import register_type

from celery_redis_plus.stored_message import BODY_SEPARATOR


class GoneError(Exception):
    """What a registered type raises where its object is deleted, as a Django model's `DoesNotExist`."""


class UnspeakableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Model:
    """Is registered with kombu, as Celery's documentation does it for Django models."""


def _gone(_: Any) -> Any:
    raise GoneError("no object with this id")


def _unspeakable(_: Any) -> Any:
    raise UnspeakableError


register_type(Model, "tests.gone", lambda _: {}, _gone)
register_type(UnspeakableError, "tests.unspeakable", lambda _: {}, _unspeakable)

DECODED_BY_KOMBU = [
    {"__type__": "decimal", "__value__": "abc"},
    {"__type__": "uuid", "__value__": 5},
    {"__type__": "nope", "__value__": 5},
    {"__type__": ["no", "name"], "__value__": 5},
    {"__type__": "bytes", "__value__": {}},
    {"__type__": "base64", "__value__": "\udcff"},
    {"__type__": "datetime", "__value__": "x"},
    {"__type__": "tests.gone", "__value__": {}},
    {"__type__": "tests.unspeakable", "__value__": {}},
]
VALUES = [
    None, 5, -1, True, 1e308, float("nan"), float("inf"), 10**30, -(10**400), "", "x", "\udcff",
    "\ud800", "\x00\t\n\\", "a" * 300,
    [], [1], [None, "a", {}], [{"queue": "q", "reason": ["x"]}], [{"queue": "q", "reason": "rejected", "count": "many"}],
    {}, {"a": 1}, {"a": {"b": [None]}},
    *DECODED_BY_KOMBU,
]  # fmt: skip
HEADERS = (
    "task", "id", "root_id", "parent_id", "eta", "expires", "retries", "timelimit", "group", "lang", "argsrepr", "compression",
    "x-death", "x-delivery-id", "x-deduplication-id", "x-delay", "x-acquired-count", "x-exception-message",
    "traceparent", "other",
)  # fmt: skip
PROPERTIES = (
    "delivery_info", "priority", "expiration", "delivery_mode", "correlation_id", "reply_to", "delivery_tag", "timestamp",
    "body_encoding",
)  # fmt: skip
DELIVERY_INFO = ("exchange", "routing_key", "redelivered")
#: Depths around what Python reads on a stack of any depth.
DEPTHS = (100, 800, 900, 940, 960, 980, 990, 1_000, 100_000)


def envelope(**parts: Any) -> dict[str, Any]:
    """Return a plain envelope with some of its parts replaced."""
    return {
        "content-type": "text/plain",
        "content-encoding": "utf-8",
        "headers": {"task": "shop.pay", "id": "1"},
        "properties": {"delivery_info": {"exchange": "", "routing_key": "q"}, "priority": 0},
        **parts,
    }


def _with_values() -> Iterator[dict[str, Any]]:
    plain = envelope()
    for value in VALUES:
        for name in HEADERS:
            yield envelope(headers={**plain["headers"], name: value})
        for name in PROPERTIES:
            yield envelope(properties={**plain["properties"], name: value})
        for name in DELIVERY_INFO:
            info = {**plain["properties"]["delivery_info"], name: value}
            yield envelope(properties={**plain["properties"], "delivery_info": info})
        for name in plain:
            yield envelope(**{name: value})
            yield {part: plain[part] for part in plain if part != name}


def payloads() -> list[bytes]:
    """Return the payloads: damaged ones, deep ones, and each value in each place."""
    found = [b"", b"\n", b"x", b"[]\n", b"{}\n", b"null\nx", b"5\nx", b'"x"\nx', b"\xff\xfe\nx", b"{" * 5000 + b"\n", b"\x00\nx"]
    nested = b'{"headers":{"task":"shop.pay","nested":%b%b},"properties":{"delivery_info":{}}}\nx'
    found += [nested % (b"[" * depth, b"]" * depth) for depth in DEPTHS]
    found += [nested % (b'{"a":' * depth + b"1", b"}" * depth) for depth in DEPTHS]
    found += [json.dumps(one).encode() + BODY_SEPARATOR + b"x" for one in _with_values()]
    return list(dict.fromkeys(found))
