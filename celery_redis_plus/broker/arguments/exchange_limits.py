"""The arguments of flow control that a fanout exchange takes, with the names and meanings that they have for queues.

A broadcast is stored once, in the exchange's stream. So the exchange has limits, and not each queue that is bound to it.
See docs/design/0018-broadcast-limits.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.argument_rules import check_arguments
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What limits the broadcasts of an exchange.
LIMITS = ("x-max-pending", "x-max-length-bytes", "x-accept-types")
#: These, and how publishers are told.
FLOW_ARGUMENTS = (*LIMITS, "x-overflow", "x-throttle")
#: Values of `x-overflow`, the default first. An exchange has no dead letters of its own.
OVERFLOWS = ("drop-head", "reject-publish", "block")


def exchange_limits(exchange: str, kind: str, arguments: Mapping[str, object]) -> QueueArguments | None:
    """Return the arguments of flow control that an exchange was declared with; None where it has none.

    Raises:
        InvalidArgument: naming exchange, argument, value and what is allowed.
    """
    given = {name: arguments[name] for name in (*FLOW_ARGUMENTS, "x-max-length") if arguments.get(name) is not None}
    if not given:
        return None
    owner = f"exchange {exchange!r}"
    first, value = next(iter(given.items()))
    if kind != "fanout":
        raise InvalidArgument(
            f"argument {first!r} of {owner} is {value!r:.100}, and its type is {kind!r}; allowed for fanout exchanges: "
            "messages of others are stored in queues, which have their own limits"
        )
    if "x-max-length" in given:
        raise InvalidArgument(f"argument 'x-max-length' of {owner} is {given['x-max-length']!r}; allowed is 'x-max-pending'")
    checked = check_arguments(owner, given)
    if checked.get("x-overflow", OVERFLOWS[0]) not in OVERFLOWS:
        allowed = ", ".join(map(repr, OVERFLOWS))
        raise InvalidArgument(f"argument 'x-overflow' of {owner} is {checked['x-overflow']!r}; allowed is one of {allowed}")
    if not checked.keys() & set(LIMITS):
        raise InvalidArgument(
            f"argument {first!r} of {owner} is {value!r:.100} without a limit; allowed only beside {', '.join(map(repr, LIMITS))}"
        )
    if checked.get("x-throttle") and "x-max-pending" not in checked:
        raise InvalidArgument(
            f"argument 'x-throttle' of {owner} is {checked['x-throttle']!r} without a limit to slow down before; allowed only "
            "beside 'x-max-pending'"
        )
    return QueueArguments(arguments=checked)
