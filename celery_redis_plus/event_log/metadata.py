"""Makes the description that a message's event `published` carries: what of its headers and properties readers want to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A property that is not stored: the id of the message that this one was made from.
SOURCE_ID = "celery_redis_plus.source_id"
#: The columns that are Celery's headers (message protocol 2) -> the header.
_HEADERS = {"task_id": "id", "task": "task", "root_id": "root_id", "parent_id": "parent_id"}


def describe(
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    *,
    eta_ms: int | str = 0,
    body_size: int,
    source_id: str | None = None,
) -> str:
    """Return the packed description of a message.

    Args:
        headers: the message's; those of Celery's tasks are understood.
        properties: the message's, with kombu's `delivery_info`.
        eta_ms: when it becomes deliverable, as `message.Outgoing` has it.
        body_size: bytes of the body.
        source_id: the id of the message that it was made from; None: the property `SOURCE_ID` says it.
    """
    # Publishers without event logs do without it.
    from celery_redis_plus.events import pack_description

    info = properties.get("delivery_info") or {}
    values: dict[str, str | int | None] = {column: _text(headers.get(header)) for column, header in _HEADERS.items()}
    retries, priority = headers.get("retries"), properties.get("priority")
    return pack_description(
        **values,
        retries=_number(retries),
        exchange=_text(info.get("exchange")),
        routing_key=_text(info.get("routing_key")),
        priority=_number(priority),
        eta=eta_ms if isinstance(eta_ms, int) and eta_ms > 0 else None,
        body_size=body_size,
        source_id=source_id or properties.get(SOURCE_ID),
    )


def _text(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            # JSON can write a surrogate of its own, UTF-8 cannot.
            return value.encode("utf-8", "backslashreplace").decode()
    return value


def _number(value: object) -> int | None:
    """Return a number that fits the column, 32 bits: a header may have any."""
    return value if type(value) is int and -(2**31) <= value < 2**31 else None
