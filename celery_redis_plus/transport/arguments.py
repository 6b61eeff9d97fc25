"""Arguments that have no effect here, of queues, consumers and messages: refused, or named once in a warning.

An argument is refused where work would go wrong without it: a publisher that counts on back-pressure, a consumer that must not
take messages away. RabbitMQ answers 406 there. Arguments that Celery, kombu or portable applications pass are a warning, once
in a process for each queue and argument.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.argument_rules import KNOWN_ARGUMENTS
from celery_redis_plus.broker.arguments.names import GROUP
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed
from celery_redis_plus.transport import framework_hooks

if TYPE_CHECKING:
    from collections.abc import Hashable

    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments

logger = logging.getLogger(__name__)

#: AMQP 0-9-1's basic properties, beside those that kombu gives a name of its own (`kombu.Producer.publish`), and `eta`, ours.
PROPERTIES = frozenset(
    {
        *("delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type"),
        *("user_id", "app_id", "cluster_id", "content_type", "content_encoding", "application_headers"),
        *("delivery_info", "delivery_tag", "body_encoding", "eta"),
    }
)
#: Options of Celery and its beat schedulers that arrive as properties and that no broker reads: Celery 5.6 and 5.7
#: (`Celery.send_task`, `Task.apply_async`), django-celery-beat 2.
OPTIONS_OF_CELERY = frozenset(
    {
        *("ignore_result", "argsrepr", "kwargsrepr", "stamped_headers", "stamps", "origin", "route_name", "router", "result_cls"),
        *("task_id", "root_id", "parent_id", "group_id", "group_index", "chord", "chain", "shadow", "link", "link_error"),
        *("queue", "exchange_type", "add_to_parent", "replaced_task_nesting", "task_type", "retries"),
        *("periodic_task_name", "expire_seconds"),
    }
)
#: Arguments of `celery_redis_plus.publish`, and options of a configured app's tasks, that a kombu Producer does not know.
OF_OUR_PUBLISH = ("track", "ack_timeout")
PASSED_ON = PROPERTIES | OPTIONS_OF_CELERY | {GROUP, "x-limiter"}

#: Consumer arguments that have an effect.
CONSUMER_ARGUMENTS = ("x-priority", "x-browse", "x-filter")
ALLOWED_FOR_CONSUMERS = ", ".join(map(repr, CONSUMER_ARGUMENTS))
#: Consumer arguments of RabbitMQ that change nothing about which messages are delivered.
HARMLESS_CONSUMER_ARGUMENTS = frozenset({"x-cancel-on-ha-failover", "x-consumer-timeout"})
#: `x-queue-type` -> whether an application notices that the queue is another one here.
QUEUE_TYPES = ("classic", "quorum")

#: Broadcasts are kept in the exchange's stream, never in the queue, so these arguments of a bound queue have no effect...
NO_EFFECT_ON_FANOUT = (
    *("x-max-length", "x-max-length-bytes", "x-message-ttl"),
    *("x-delivery-limit", "x-delayed-retry-min", "x-delayed-retry-max", "x-retry-policy", "x-rate-limit", "x-max-unacked"),
    *("x-max-priority", "x-priority-ageing", "x-single-active-consumer", "x-event-log"),
)
#: ... and these are refused, because they promise a publisher that it is slowed down or told.
REFUSED_ON_FANOUT = ("x-max-pending", "x-throttle", "x-accept-types")
REFUSED_OVERFLOWS = ("reject-publish", "reject-publish-dlx", "block")

#: Consumer priorities go from minus this to this.
MAX_CONSUMER_PRIORITY = 1_000_000
#: What this process has warned of: (kind, queue, argument).
_reported: set[tuple[Hashable, ...]] = set()


def check_prefetch_count(value: Any) -> int:
    """Return a prefetch count; None is 0, no limit. Celery multiplies processes by a setting, so it may be 1.5: two messages.

    Raises:
        InvalidArgument: it is negative, or no number.
    """
    if value is None:
        return 0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InvalidArgument(f"prefetch_count is {value!r:.100}; allowed: a number from 0, which is no limit")
    return math.ceil(value)


def check_properties(properties: Mapping[str, Any], headers: Mapping[str, Any], known: Iterable[str]) -> None:
    """Look at a message's properties; those in `known` are the transport's own.

    Raises:
        InvalidArgument: `track` or `ack_timeout`, which only `celery_redis_plus.publish` understands.
    """
    # Celery passes the value of each stamp as an option of the stamp's name.
    unknown = set(properties).difference(PASSED_ON, known, headers.get("stamped_headers") or ())
    for name in sorted(unknown):
        if name in OF_OUR_PUBLISH:
            raise InvalidArgument(
                f"publish option {name!r} is {properties[name]!r:.100}, and has no effect on a kombu Producer; allowed in "
                "celery_redis_plus.publish() and broadcast(), and for tasks of an app after configure_app(app)"
            )
        _warn_once(
            ("property", name),
            f"publish option {name!r} ({properties[name]!r:.100}) is unknown to Celery, kombu and celery-redis-plus, and "
            f"has no effect.{_hint(name, PROPERTIES)} Put your own data into headers",
        )


def check_consumer_arguments(queue: str, arguments: Mapping[str, Any]) -> None:
    """Look at the arguments of a consumer.

    Raises:
        InvalidArgument: one of them would change what is delivered, and is unknown here.
    """
    for name, value in arguments.items():
        if name in CONSUMER_ARGUMENTS or value is None:
            continue
        what = f"argument {name!r} of a consumer of queue {queue!r} is {value!r:.100}"
        if name not in HARMLESS_CONSUMER_ARGUMENTS:
            raise InvalidArgument(f"{what}, which is unknown here; allowed are {ALLOWED_FOR_CONSUMERS}")
        _warn_once(
            ("consumer", queue, name),
            f"{what}, and has no effect; allowed are {ALLOWED_FOR_CONSUMERS}, and for a queue 'x-consumer-timeout'",
        )


def consumer_priority(queue: str, arguments: Mapping[str, Any] | None, default: int) -> int:
    """Return the argument `x-priority` of a consumer of `queue`, or else `default`.

    Raises:
        InvalidArgument: it is no whole number, or too large; or as `check_consumer_arguments`.
    """
    check_consumer_arguments(queue, arguments or {})
    priority = (arguments or {}).get("x-priority")
    if priority is None:
        return default
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_CONSUMER_PRIORITY:
        raise InvalidArgument(
            f"argument 'x-priority' of a consumer of queue {queue!r} is {priority!r}; allowed is a whole number from "
            f"{-MAX_CONSUMER_PRIORITY} to {MAX_CONSUMER_PRIORITY}"
        )
    return priority


def browses(queue: str, arguments: Mapping[str, Any] | None, *, exclusive: bool) -> bool:
    """Return the argument `x-browse` of a consumer of `queue`: whether it only looks.

    Raises:
        InvalidArgument: it is neither true nor false; or stands beside `x-priority` or `exclusive`.
    """
    value = (arguments or {}).get("x-browse")
    what = f"argument 'x-browse' of a consumer of queue {queue!r} is {value!r:.100}"
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"{what}; allowed are true and false")
    others = [name for name in ("x-priority", "x-filter") if (arguments or {}).get(name) is not None]
    if value and (exclusive or others):
        beside = "exclusive=True" if exclusive else repr(others[0])
        raise InvalidArgument(f"{what} beside {beside}; allowed is one of the two: what only looks takes nothing from others")
    return bool(value)


def consumer_filter(queue: str, arguments: Mapping[str, Any] | None) -> str:
    """Return the argument `x-filter` of a consumer of `queue`, packed; empty: it takes all. Raises as `pack_filter`."""
    value = (arguments or {}).get("x-filter")
    if value is None:
        return ""
    from celery_redis_plus.broker.arguments.header_filter import pack_filter

    return pack_filter(value, f"a consumer of queue {queue!r}")


def check_queue_arguments(queue: str, declared: QueueArguments) -> None:
    """Look at the arguments of a queue that are unknown here.

    Raises:
        InvalidArgument: the queue type cannot be served, or the name is that of a known argument, misspelled.
    """
    for name, value in declared.arguments.items():
        if name in KNOWN_ARGUMENTS:
            continue
        what = f"argument {name!r} of queue {queue!r} is {value!r:.100}"
        if name == "x-queue-type":
            if value not in QUEUE_TYPES:
                raise InvalidArgument(
                    f"{what}; allowed are {', '.join(map(repr, QUEUE_TYPES))}: streams are fanout exchanges here"
                )
            continue
        # For an error only.
        import difflib

        near = difflib.get_close_matches(name, KNOWN_ARGUMENTS, n=1, cutoff=0.85)
        if near:
            raise InvalidArgument(f"{what}, which is unknown here; did you mean {near[0]!r}?")
        _warn_once(
            ("queue", queue, name),
            f"{what}, which is unknown here and has no effect; allowed are {', '.join(sorted(KNOWN_ARGUMENTS))}",
        )


def check_fanout_binding(queue: str, declared: QueueArguments | None, exchange: str) -> None:
    """Look at the arguments of a queue that is bound to a fanout exchange.

    Raises:
        PreconditionFailed: an argument promises publishers or consumers what no broadcast heeds.
    """
    if declared is None or not declared.arguments:
        return
    arguments = declared.arguments
    refused = [name for name in REFUSED_ON_FANOUT if arguments.get(name)]
    if arguments.get("x-overflow") in REFUSED_OVERFLOWS:
        refused.append("x-overflow")
    where = f"of queue {queue!r}, which is bound to the fanout exchange {exchange!r}"
    if arguments.get("x-filtered"):
        raise PreconditionFailed(
            f"PRECONDITION_FAILED - 'x-filtered' (True) {where}, cannot be kept: each consumer gets all broadcasts; allowed is a "
            "queue without it, or an exchange of type headers"
        )
    if declared.groups is not None:
        raise PreconditionFailed(
            f"PRECONDITION_FAILED - 'x-group-concurrency' or 'x-fair' {where}, cannot be kept: broadcasts come in their order, "
            "whatever their groups; allowed is a queue without it, or an exchange of another type"
        )
    if refused:
        values = ", ".join(f"{name!r} ({arguments[name]!r:.100})" for name in refused)
        raise PreconditionFailed(
            f"PRECONDITION_FAILED - {values} {where}, cannot be kept: broadcasts are stored in the exchange's stream and no "
            "queue of its subscribers holds a publisher up; allowed as arguments of the exchange itself"
        )
    for name in NO_EFFECT_ON_FANOUT:
        # Celery's queues of remote control and events have a TTL, lest messages pile up: here the stream's limits do that.
        if name in arguments and not (name == "x-message-ttl" and framework_hooks.declares_queues_on(exchange)):
            _warn_once(
                ("fanout", queue, name),
                f"argument {name!r} ({arguments[name]!r:.100}) {where}, has no effect on broadcasts: they are stored in the "
                "exchange's stream, which the transport options stream_maxlen and stream_max_age limit",
            )


def _hint(name: str, known: Iterable[str]) -> str:
    # For an error only.
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f" Did you mean {near[0]!r}?" if near else ""


def _warn_once(key: tuple[Hashable, ...], text: str) -> None:
    if key not in _reported:
        _reported.add(key)
        logger.warning(text)
