"""Converts messages between kombu's own Redis transport and this one: headers, properties, body, priority, time and expiry."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from celery_redis_plus.broker.arguments.eta import eta_to_ms, time_of_ms
from celery_redis_plus.broker.arguments.expiry import life_of
from celery_redis_plus.broker.arguments.priority import RANKS, check_priority
from celery_redis_plus.broker.consumers.last_error import failure_by
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.event_log.metadata import describe
from celery_redis_plus.stored_message import Outgoing, unreadable
from celery_redis_plus.transport.stored_json import dump, is_protocol_1, load, revive

#: What becomes of priorities where the two transports deliver them in opposite orders.
Priorities = Literal["keep", "invert"]
#: The highest priority that Celery's documentation names for Redis; `invert` is this minus the priority.
HIGHEST: Final = 9
#: Properties that belong to one delivery.
_OF_A_DELIVERY: Final = frozenset(("delivery_tag", "body_encoding", "eta"))


class UnreadableError(ValueError):
    """A message that cannot be converted; the text says why. It stays where it is."""


@dataclass(frozen=True, slots=True)
class PriorityMapping:
    """How the priorities of the two installations belong together.

    kombu's Redis transport delivers 0 first. This transport does so with the option `priority_order` "low-first".
    """

    low_first: bool
    choice: Priorities | None

    def convert(self, priority: int) -> int:
        """Return a message's priority on the other side; both directions are the same.

        Raises:
            OptionError: the two orders differ, and it is not said what shall become of priorities.
        """
        if self.low_first or self.choice == "keep":
            return priority
        if self.choice == "invert":
            return max(0, HIGHEST - priority)
        if priority == 0:
            return 0
        raise OptionError(
            f"a message has priority {priority}: kombu's Redis transport delivers 0 first, and this broker the highest number. "
            "What to do: set priority_order to 'low-first' in broker_transport_options (in the URL with --broker), or say "
            "--priorities invert (9 minus the number: the order stays) or --priorities keep (the number stays)"
        )


@dataclass(frozen=True, slots=True)
class Converted:
    """A message of kombu's as this transport stores it."""

    outgoing: Outgoing
    #: Whether it becomes deliverable later.
    delayed: bool


def from_kombu(text: bytes, mapping: PriorityMapping, max_priority: int | None, now_ms: int) -> Converted:
    """Convert a message as it stands in kombu's list; `max_priority` is the queue's cap.

    Raises:
        UnreadableError: it is none of kombu's, or has a value that this transport refuses.
        OptionError: as `PriorityMapping.convert`.
    """
    try:
        return _from_kombu(text, mapping, max_priority, now_ms)
    except (UnreadableError, OptionError):
        raise
    except InvalidArgument as error:
        raise UnreadableError(str(error)) from error
    except Exception as error:
        why = failure_by(unreadable(error).error).text
        raise UnreadableError(f"it is no message of kombu's ({why:.200})") from error


def _from_kombu(text: bytes, mapping: PriorityMapping, max_priority: int | None, now_ms: int) -> Converted:
    message = json.loads(text)
    headers, properties = _mapping_of(message, "headers"), _mapping_of(message, "properties")
    body = _decoded(message["body"], properties.get("body_encoding"))
    given = check_priority(properties.get("priority"))
    eta_ms = eta_to_ms(headers["eta"], naive_is_utc=True) if headers.get("eta") else 0
    life = "" if is_protocol_1(headers, body) else life_of(headers, properties.get("expiration"))
    priority = check_priority(mapping.convert(given), max_priority)
    kept = {name: value for name, value in properties.items() if name not in _OF_A_DELIVERY}
    kept["delivery_info"] = _mapping_of(properties, "delivery_info")
    envelope = dump(
        {
            "content-type": message.get("content-type"),
            "content-encoding": message.get("content-encoding"),
            "headers": headers,
            "properties": {**kept, "priority": priority},
        }
    )
    # As a consumer reads it: kombu refuses values of types that it does not know.
    load(envelope)
    # Made now: what cannot be described is found here, and not between two messages that are stored.
    description = describe(headers, kept, eta_ms=eta_ms, body_size=len(body))
    description.encode()
    outgoing = Outgoing(
        envelope=envelope,
        body=body,
        rank=RANKS["low-first" if mapping.low_first else "high-first"][priority],
        eta=eta_ms,
        life=life,
        describe=lambda: description,
    )
    return Converted(outgoing, eta_ms > now_ms)


def _mapping_of(owner: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a message; empty where it is missing or null, as kombu's `Message` has it."""
    value = owner.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableError(f"it is no message of kombu's ({name} is of type {type(value).__name__})")
    return value


def to_kombu(
    envelope: bytes, body: bytes, tag: str, due_ms: int | None, mapping: PriorityMapping, now_ms: int
) -> tuple[bytes, int]:  # fmt: skip
    """Convert a message of ours; return its text in kombu's list, and its priority there.

    Args:
        envelope: headers and properties, as they are stored.
        body: as it was published.
        tag: its id here, which becomes the delivery tag.
        due_ms: when a delayed one is due, ms since the epoch: Celery's header `eta` says so there.
        mapping: how priorities are converted.
        now_ms: the server's time, ms since the epoch.

    Raises:
        UnreadableError: it cannot be read; or it is delayed and no task, so that no worker would hold it there.
        OptionError: as `PriorityMapping.convert`.
    """
    try:
        return _to_kombu(envelope, body, tag, due_ms, mapping, now_ms)
    except (UnreadableError, OptionError):
        raise
    except Exception as error:
        why = failure_by(unreadable(error).error).text
        raise UnreadableError(f"its headers cannot be read ({why:.200})") from error


def _to_kombu(
    envelope: bytes, body: bytes, tag: str, due_ms: int | None, mapping: PriorityMapping, now_ms: int
) -> tuple[bytes, int]:  # fmt: skip
    message = json.loads(envelope)
    headers, properties = _mapping_of(message, "headers"), _mapping_of(message, "properties")
    given = check_priority(properties.get("priority"))
    priority = mapping.convert(given)
    if due_ms is not None:
        if "task" not in headers:
            raise UnreadableError("it is delayed and no Celery task: kombu's transport has no delayed messages")
        headers = {**headers, "eta": _later(headers.get("eta"), due_ms)}
    elif "task" in headers and (eta_ms_of(headers.get("eta")) or 0) > now_ms:
        # It was rescheduled, and is due already.
        headers = {**headers, "eta": None}
    return dump(
        {
            "body": base64.b64encode(body).decode("ascii"),
            "content-encoding": message.get("content-encoding"),
            "content-type": message.get("content-type"),
            "headers": headers,
            "properties": {**properties, "priority": priority, "delivery_tag": tag, "body_encoding": "base64"},
        }
    ), priority


def _decoded(body: Any, encoding: str | None) -> bytes:
    if encoding == "base64":
        return base64.b64decode(body)
    if isinstance(body, dict):
        # The body of an installation with body_encoding=None, where it is bytes.
        body = revive(body)
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    raise ValueError(f"a body of type {type(body).__name__}")


def eta_ms_of(eta: Any) -> int | None:
    """Return a task's header `eta` in ms since the epoch; None without one, or where it cannot be read."""
    try:
        return eta_to_ms(eta, naive_is_utc=True) if eta else None
    except InvalidArgument:
        return None


def _later(eta: Any, due_ms: int) -> str:
    """Return the task's own eta where it is the time at which the message is due, which may have been changed since."""
    return eta if isinstance(eta, str) and eta_ms_of(eta) == due_ms else time_of_ms(due_ms).isoformat()
