"""What is stored of an exchange, and whether a second declaration agrees with the first."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.exchange_limits import exchange_limits
from celery_redis_plus.broker.arguments.field_tables import first_difference, inequivalent, pack_table, to_text, unpack_table
from celery_redis_plus.broker.exchanges.routing import EXCHANGE_TYPES, SHOWN
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments


#: The type of RabbitMQ's delayed message plugin.
DELAYED_TYPE = "x-delayed-message"


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeRecord:
    """The declaration of an exchange; compare two with `difference`."""

    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    #: None, as kombu passes it, becomes the empty table.
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep a copy of the arguments, and true or false for any truth value."""
        object.__setattr__(self, "durable", bool(self.durable))
        object.__setattr__(self, "auto_delete", bool(self.auto_delete))
        object.__setattr__(self, "arguments", dict(self.arguments or {}))

    def is_same(self, other: ExchangeRecord) -> bool:
        """Tell whether both are written alike, which is cheaper to find out than what makes them differ."""
        return (
            self.type == other.type
            and self.durable == other.durable
            and self.auto_delete == other.auto_delete
            and self.arguments == other.arguments
        )

    @property
    def alternate_exchange(self) -> str | None:
        """`alternate-exchange`: the exchange that gets messages without a recipient here.

        Source: https://www.rabbitmq.com/docs/ae
        """
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) and name else None

    @property
    def routing_type(self) -> str:
        """How it routes. An exchange of RabbitMQ's delayed message plugin says so by `x-delayed-type`.

        The delay itself is the header `x-delay`, which messages to any exchange may have here.
        Source: https://github.com/rabbitmq/rabbitmq-delayed-message-exchange
        """
        return str(self.arguments.get("x-delayed-type")) if self.type == DELAYED_TYPE else self.type

    def check(self, exchange: str) -> None:
        """Refuse a type or arguments that are not allowed.

        Raises:
            InvalidArgument: naming exchange, argument, value and what is allowed.
        """
        if self.routing_type not in EXCHANGE_TYPES:
            delayed = self.type == DELAYED_TYPE
            what = f"argument 'x-delayed-type' of exchange {exchange!r}" if delayed else f"type of exchange {exchange!r}"
            value = self.arguments.get("x-delayed-type") if delayed else self.type
            allowed = ", ".join(map(repr, EXCHANGE_TYPES if delayed else (*EXCHANGE_TYPES, DELAYED_TYPE)))
            raise InvalidArgument(f"{what} is {value!r}; allowed are {allowed}")
        name = self.arguments.get("alternate-exchange")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidArgument(
                f"argument 'alternate-exchange' of exchange {exchange!r} is {name!r}; allowed is the name of an exchange"
            )

        self.limits(exchange)

    def limits(self, exchange: str) -> QueueArguments | None:
        """Return the arguments of flow control; None without any.

        Raises:
            InvalidArgument: as `check`.
        """
        return exchange_limits(exchange, self.type, self.arguments) if self.arguments else None

    def difference(self, current: ExchangeRecord, exchange: str) -> str | None:
        """Return in RabbitMQ's words what keeps this declaration of `exchange` from agreeing with `current`.

        None: they agree. Compared are type, durable, auto_delete, then the arguments by name; an argument of
        None is as good as none.

        Example:
            >>> ExchangeRecord("topic").difference(ExchangeRecord("direct"), "e")
            "inequivalent arg 'type' for exchange 'e': received 'topic' but current is 'direct'"
        """
        owner = f"exchange {exchange!r}"
        for name in ("type", "durable", "auto_delete"):
            received, present = getattr(self, name), getattr(current, name)
            if received != present:
                return inequivalent(name, owner, received, present)
        key = first_difference(self.arguments, current.arguments)
        if key is None:
            return None
        return inequivalent(key, owner, self.arguments.get(key), current.arguments.get(key))


def encode_exchange(record: ExchangeRecord, exchange: str = "") -> str:
    """Return the record as canonical ASCII JSON, a value of the hash `exchanges`, without what is false.

    Raises:
        InvalidArgument: an argument's value is of a type that an AMQP table cannot hold; names the exchange.
    """
    flags = {name: True for name in ("durable", "auto_delete") if getattr(record, name)}
    arguments = pack_table(record.arguments, f"exchange {exchange!r}")
    return to_text({"type": record.type, **flags, **({"arguments": arguments} if arguments else {})})


def decode_exchange(text: str | bytes) -> ExchangeRecord:
    """Return the record that `encode_exchange` made `text` of; keys of newer versions are passed over.

    Raises:
        InvalidArgument: the text is no record of an exchange.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"stored exchange {text[:SHOWN]!r} is no JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise InvalidArgument(f"stored exchange {text[:SHOWN]!r} names no type")
    arguments = unpack_table(data.get("arguments") or {})
    return ExchangeRecord(data["type"], data.get("durable", False), data.get("auto_delete", False), arguments)
