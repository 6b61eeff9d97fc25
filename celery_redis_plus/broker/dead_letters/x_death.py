"""What a message's headers tell of its deaths: `x-death` and its kin, as RabbitMQ writes them.

Source: https://www.rabbitmq.com/docs/dlx#effects. One entry per queue and reason, the latest first, with the count of deaths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.last_error import Failure

#: Reasons for which no consumer had the message in hand: a circle of these alone would turn for ever.
AUTOMATIC = ("expired", "maxlen")
#: Headers that name the exception with which the work on a message ended last, the end of its traceback where that is kept, and
#: the release of the application that met it.
EXCEPTION, TRACEBACK, RELEASE = "x-exception-message", "x-exception-stacktrace", "x-exception-release"


@dataclass(frozen=True, slots=True)
class DeathEntry:
    """How a message died in a queue."""

    queue: str
    #: `rejected`, `expired`, `maxlen`, `delivery_limit`, `unroutable`, …
    reason: str
    #: Milliseconds since the epoch, on the server's clock.
    time_ms: int
    #: Where it had been published to.
    exchange: str
    routing_key: str
    #: The property `expiration` that it died of; RabbitMQ takes it off, so that the message does not expire again.
    expiration: str | None = None


def record_death(headers: Mapping[str, Any], death: DeathEntry) -> dict[str, Any]:
    """Return `headers` with one more death in them; times are unix seconds."""
    deaths = [dict(entry) for entry in _deaths(headers)]
    known = next((entry for entry in deaths if (entry.get("queue"), entry.get("reason")) == (death.queue, death.reason)), None)
    if known is None:
        known = {
            "count": 0,
            "reason": death.reason,
            "queue": death.queue,
            "time": death.time_ms // 1000,
            "exchange": death.exchange,
            "routing-keys": [death.routing_key],
        }
    else:
        deaths.remove(known)
    count = known.get("count")
    # A publisher may have written anything there.
    known["count"] = count + 1 if isinstance(count, int) else 1
    if death.expiration is not None:
        known["original-expiration"] = death.expiration
    recorded = {**headers, "x-death": [known, *deaths]}
    last = {"queue": death.queue, "reason": death.reason, "exchange": death.exchange}
    for name, value in last.items():
        recorded.setdefault(f"x-first-death-{name}", value)
        recorded[f"x-last-death-{name}"] = value
    return recorded


def record_failure(headers: Mapping[str, Any], failure: Failure | None) -> dict[str, Any]:
    """Return `headers` with the exception of this death; one of an earlier death is taken off.

    The names are those of Spring AMQP's `RepublishMessageRecoverer`.
    Source: https://docs.spring.io/spring-amqp/reference/amqp/resilience-recovering-from-errors-and-broker-failures.html
    """
    recorded = {name: value for name, value in headers.items() if name not in (EXCEPTION, TRACEBACK, RELEASE)}
    if failure is not None:
        recorded[EXCEPTION] = failure.text
        if failure.traceback:
            recorded[TRACEBACK] = failure.traceback
        if failure.release:
            recorded[RELEASE] = failure.release
    return recorded


def is_cycle(headers: Mapping[str, Any], queue: str) -> bool:
    """Tell whether a dead message that goes to `queue` was there before, and came round without anybody having had it in hand.

    RabbitMQ drops such a message; here it stays in the store of the queue it died in.
    """
    for entry in _deaths(headers):
        if entry.get("reason") not in AUTOMATIC:
            return False
        if entry.get("queue") == queue:
            return True
    return False


def _deaths(headers: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    deaths = headers.get("x-death")
    return [entry for entry in deaths if isinstance(entry, Mapping)] if isinstance(deaths, list) else []
