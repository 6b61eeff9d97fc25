"""The definitions of a broker: its queues, exchanges, bindings and policies, as a JSON document close to RabbitMQ's.

Source: https://www.rabbitmq.com/docs/definitions. A broker is one virtual host here. Names of policies are their patterns, which
are those of a shell, and not regular expressions; their arguments begin with `x-`, as in a declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from celery_redis_plus.broker.arguments.argument_rules import check_steering
from celery_redis_plus.broker.arguments.field_tables import pack_table, unpack_table
from celery_redis_plus.broker.arguments.names import check_name
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments, check_queue_name
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord
from celery_redis_plus.broker.exchanges.routing import Binding, check_binding
from celery_redis_plus.broker.queues.policies import Policy
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.version import __version__

PRODUCT: Final = "celery-redis-plus"
VHOST: Final = "/"
#: What a document has, in the order in which it is declared.
KINDS: Final = ("exchanges", "queues", "bindings", "policies")
#: Problems that an error tells.
MOST_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a broker has; bindings are (exchange, binding)."""

    exchanges: dict[str, ExchangeRecord] = field(default_factory=dict)
    queues: dict[str, QueueArguments] = field(default_factory=dict)
    bindings: list[tuple[str, Binding]] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(self.counts().values())

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        return {kind: len(getattr(self, kind)) for kind in KINDS}

    def __str__(self) -> str:
        named = {"exchanges": "exchange", "queues": "queue", "bindings": "binding", "policies": "policy"}
        return ", ".join(f"{count:,} {named[kind] if count == 1 else kind}" for kind, count in self.counts().items())

    def document(self) -> dict[str, Any]:
        """Return them as data for JSON."""
        return {
            "product_name": PRODUCT,
            "product_version": __version__,
            "vhosts": [{"name": VHOST}],
            "exchanges": [
                {
                    "name": name, "vhost": VHOST, "type": one.type, "durable": one.durable, "auto_delete": one.auto_delete,
                    "internal": False, "arguments": pack_table(one.arguments, f"exchange {name!r}"),
                }
                for name, one in sorted(self.exchanges.items())
            ],
            "queues": [
                {
                    "name": name, "vhost": VHOST, "durable": one.durable, "auto_delete": one.auto_delete,
                    "arguments": pack_table(one.arguments, f"queue {name!r}"),
                }
                for name, one in sorted(self.queues.items())
            ],
            "bindings": [
                {
                    "source": exchange, "vhost": VHOST, "destination": one.queue, "destination_type": "queue",
                    "routing_key": one.routing_key,
                    "arguments": pack_table(one.arguments, f"the binding of queue {one.queue!r}"),
                }
                for exchange, one in sorted(self.bindings, key=_by_name)
            ],
            "policies": [
                {
                    "name": one.pattern, "vhost": VHOST, "pattern": one.pattern, "apply-to": "queues", "priority": one.priority,
                    "definition": pack_table(one.arguments, f"policy {one.pattern!r}"), "reason": one.reason,
                    **({"until": one.until.isoformat()} if one.until else {}),
                }
                for one in sorted(self.policies, key=lambda one: one.pattern)
            ],
        }  # fmt: skip

    def part(self, owns: Callable[[str], bool]) -> Definitions:
        """Return what belongs to one of several shards, which owns some of the queues.

        A queue with a binding to a fanout exchange is on each shard, as the transport has it.
        """
        fanouts = {name for name, one in self.exchanges.items() if one.type == "fanout"}
        broadcast = {one.queue for exchange, one in self.bindings if exchange in fanouts}
        queues = {name: one for name, one in self.queues.items() if name in broadcast or owns(name)}
        bindings = [(exchange, one) for exchange, one in self.bindings if one.queue in broadcast or owns(one.queue)]
        return Definitions(self.exchanges, queues, bindings, self.policies)


def _by_name(bound: tuple[str, Binding]) -> tuple[str, str, str]:
    exchange, one = bound
    return exchange, one.queue, one.routing_key


def read_definitions(document: Any, kinds: tuple[str, ...] = KINDS) -> Definitions:
    """Return what a document says, of ours or of RabbitMQ, of these `kinds`.

    Raises:
        InvalidArgument: naming each entry that cannot be declared, up to twenty.
    """
    reader = _Reader(document)
    found = Definitions()
    if "exchanges" in kinds:
        found.exchanges.update(reader.each("exchanges", reader.exchange))
    if "queues" in kinds:
        found.queues.update(reader.each("queues", reader.queue))
    if "bindings" in kinds:
        found.bindings.extend(reader.each("bindings", reader.binding))
    if "policies" in kinds:
        found.policies.extend(reader.each("policies", reader.policy))
    for exchange, one in found.bindings:
        record = found.exchanges.get(exchange)
        if record is not None:
            reader.attempt(partial(check_binding, record.routing_type, one))
    if reader.problems:
        told = "; ".join(reader.problems[:MOST_TOLD])
        more = len(reader.problems) - MOST_TOLD
        raise InvalidArgument(f"these definitions cannot be declared: {told}{f'; and {more} more' if more > 0 else ''}")
    return found


class _Reader:
    """Reads the entries of a document, and collects what is wrong with them."""

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict) or not any(kind in document for kind in KINDS):
            raise InvalidArgument(f"these are no definitions; allowed is a JSON object with one of {', '.join(KINDS)}")
        self._document = document
        self._is_ours = document.get("product_name") == PRODUCT
        self.problems: list[str] = []
        vhosts = sorted({str(entry.get("vhost", VHOST)) for kind in KINDS for entry in self._entries(kind)})
        if len(vhosts) > 1:
            self.problems.append(
                f"they are of {len(vhosts)} virtual hosts ({', '.join(map(repr, vhosts))}); allowed is one, because a broker has "
                "no others: export each by itself"
            )

    def _entries(self, kind: str) -> list[dict[str, Any]]:
        entries = self._document.get(kind, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InvalidArgument(f"{kind!r} of these definitions is no list of JSON objects")
        return entries

    def each(self, kind: str, read: Callable[[dict[str, Any]], Any]) -> Iterator[Any]:
        """Yield what `read` makes of each entry of a kind."""
        for entry in self._entries(kind):
            found = self.attempt(partial(read, entry))
            if found is not None:
                yield found

    def attempt(self, read: Callable[[], Any]) -> Any:
        """Return what `read` returns; None where it finds a problem, which is noted."""
        try:
            return read()
        except InvalidArgument as error:
            self.problems.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            self.problems.append(f"an entry cannot be read ({type(error).__name__}: {error})")
        return None

    def _table(self, entry: Mapping[str, Any], name: str) -> dict[str, object]:
        table = entry.get(name) or {}
        # What JSON has no form for is marked in ours alone.
        return unpack_table(table) if self._is_ours else dict(table)

    def exchange(self, entry: dict[str, Any]) -> tuple[str, ExchangeRecord] | None:
        """Read an exchange; the default exchange, which always is there, is passed over."""
        if not entry["name"]:
            return None
        name = check_name("exchange name", entry["name"])
        record = ExchangeRecord(
            str(entry.get("type", "direct")), entry.get("durable", False), entry.get("auto_delete", False),
            self._table(entry, "arguments"),
        )  # fmt: skip
        record.check(name)
        return name, record

    def queue(self, entry: dict[str, Any]) -> tuple[str, QueueArguments]:
        """Read a queue."""
        name = check_queue_name(entry["name"])
        flags = {flag: entry.get(flag, False) for flag in ("durable", "auto_delete")}
        return name, QueueArguments.parse(name, arguments=self._table(entry, "arguments"), **flags)

    def binding(self, entry: dict[str, Any]) -> tuple[str, Binding] | None:
        """Read a binding; one to the default exchange, which each queue has, is passed over."""
        source, queue = str(entry["source"]), str(entry["destination"])
        if entry.get("destination_type", "queue") != "queue":
            raise InvalidArgument(
                f"the binding of exchange {source!r} to {queue!r} is one between exchanges; allowed are those of queues"
            )
        if not source:
            return None
        return source, Binding(check_queue_name(queue), str(entry.get("routing_key", "")), self._table(entry, "arguments"))

    def policy(self, entry: dict[str, Any]) -> Policy:
        """Read a policy of ours; the pattern of RabbitMQ's is a regular expression."""
        pattern = str(entry["pattern"])
        if not self._is_ours:
            raise InvalidArgument(
                f"policy {entry.get('name')!r} is RabbitMQ's, with a regular expression and other arguments: set it by the "
                "command policy, and leave policies out (--only)"
            )
        until = entry.get("until")
        until_ms = 0 if until is None else round(datetime.fromisoformat(str(until)).timestamp() * 1000)
        arguments = check_steering(f"policy {pattern!r}", self._table(entry, "definition"))
        return Policy(pattern, arguments, str(entry.get("reason", "")), int(entry.get("priority", 0)), until_ms=until_ms)
