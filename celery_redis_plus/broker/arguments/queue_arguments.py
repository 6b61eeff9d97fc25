"""The arguments of a queue's declaration: checked, stored, and compared with those of an earlier declaration.

Names, meanings and limits are RabbitMQ's (https://www.rabbitmq.com/docs/queues#optional-arguments and
`declare_args` in `rabbit_amqqueue.erl`). Times are milliseconds. Arguments that are not listed here are kept
as they are; `transport.arguments` names them to the user.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from celery_redis_plus.broker.arguments.argument_rules import STEERING, check_arguments, rate_of
from celery_redis_plus.broker.arguments.field_tables import first_difference, inequivalent, pack_table, to_text, unpack_table
from celery_redis_plus.broker.arguments.names import check_name
from celery_redis_plus.errors import InvalidArgument, InvalidQueueName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from celery_redis_plus.broker.arguments.retry_policy import RetryPolicies

#: A queue with a rate limit that was idle may give this part of a second's messages at once.
BURST_SHARE = 10

#: Field of the record `meta:{Q}` -> the argument whose number stands in it for the scripts.
_RULE_FIELDS = {
    "message_ttl": "x-message-ttl",
    "limit": "x-delivery-limit",
    "max_unacked": "x-max-unacked",
    "ageing": "x-priority-ageing",
}

#: All fields of the record that `rules` gives, and their limits.
RULE_FIELDS = (
    *_RULE_FIELDS,
    "dlx",
    "retry",
    "redrive",
    "groups",
    "sac",
    "rate",
    "burst",
    "filtered",
    "restricted",
    "limited",
    "waiting_publishers",
)

#: What a queue with `x-filtered` may not have besides.
_NOT_FILTERED = ("x-single-active-consumer", "x-max-unacked", "x-rate-limit")
_FLAGS = ("durable", "exclusive", "auto_delete")


def check_queue_name(name: object) -> str:
    """Return `name` if a queue may be called so.

    Raises:
        InvalidQueueName: as `names.check_name`.
    """
    return check_name("queue name", name, error=InvalidQueueName)


@dataclass(frozen=True, slots=True, eq=False)
class QueueArguments:
    """What a queue was declared with. `parse` and `decode` make one, `difference` compares two."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    #: The `x-*` table, checked; whole numbers are ints, None values left out.
    arguments: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        queue: str,
        *,
        durable: object = False,
        exclusive: object = False,
        auto_delete: object = False,
        arguments: Mapping[str, object] | None = None,
    ) -> QueueArguments:
        """Return the checked arguments of `queue.declare`, as kombu passes them.

        Args:
            queue: the queue's name, for errors.
            durable: a truth value; kept and compared, nothing else: everything here survives a restart.
            exclusive: a truth value; makes the queue transient.
            auto_delete: a truth value; makes the queue transient.
            arguments: AMQP's table; None is empty, and so is a value of None.

        Raises:
            InvalidArgument: naming queue, argument, value and what is allowed.
        """
        checked = check_arguments(f"queue {queue!r}", arguments)
        parsed = cls(bool(durable), bool(exclusive), bool(auto_delete), checked)
        for name, problem in parsed._contradictions():
            raise InvalidArgument(f"argument {name!r} of queue {queue!r} is {checked[name]!r} {problem}")
        return parsed

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each argument that does not go with the others, and what is wrong with it."""
        given = self.arguments
        if "x-dead-letter-routing-key" in given and "x-dead-letter-exchange" not in given:
            problem = "without 'x-dead-letter-exchange'; allowed only beside it ('' is the default exchange)"
            yield "x-dead-letter-routing-key", problem
        if "x-redrive" in given and "x-dead-letter-exchange" in given:
            yield "x-redrive", "beside 'x-dead-letter-exchange', which takes the dead letters away; allowed is one of the two"
        if "x-redrive" in given and self.transient:
            yield "x-redrive", "and the queue is transient, which keeps no dead letters; allowed for lasting queues"
        shortest, longest = self._whole("x-delayed-retry-min"), self._whole("x-delayed-retry-max")
        if longest is not None and (shortest is None or shortest > longest):
            problem = f"beside 'x-delayed-retry-min' {shortest!r}; allowed is at least that, which has to be given"
            yield "x-delayed-retry-max", problem
        if "x-retry-policy" in given and shortest is not None:
            yield "x-retry-policy", "beside 'x-delayed-retry-min'; allowed is one of the two"
        if given.get("x-throttle") and not given.keys() & {"x-max-length", "x-max-pending"}:
            problem = "without a limit to slow down before; allowed only beside 'x-max-pending' or 'x-max-length'"
            yield "x-throttle", problem
        if self.durable_subscriber and (self.auto_delete or self.exclusive):
            flag = "auto_delete" if self.auto_delete else "exclusive"
            problem = f"beside {flag}=True, which deletes the queue with its consumer; allowed only with {flag}=False"
            yield "x-durable-subscriber", problem
        beside = [name for name in _NOT_FILTERED if given.get(name)]
        if self.filtered and beside:
            yield "x-filtered", f"beside {beside[0]!r}; allowed without it: a consumer could hold what it does not take"
        yield from self._contradictions_of_groups()
        if self.event_log and self.transient:
            problem = "beside exclusive, auto_delete or x-expires; allowed only in a lasting queue, because its events outlive it"
            yield "x-event-log", problem

    def _contradictions_of_groups(self) -> Iterator[tuple[str, str]]:
        given = self.arguments
        if given.get("x-group-order") == "strict" and "x-group-concurrency" not in given:
            yield "x-group-order", "without 'x-group-concurrency'; allowed only beside it: nothing else keeps messages in order"
        asked = next((name for name in ("x-group-concurrency", "x-fair") if given.get(name)), None)
        if asked is None:
            return
        if self.transient:
            yield asked, "beside exclusive, auto_delete or x-expires; allowed only in a lasting queue"
        if self.filtered:
            yield asked, "beside 'x-filtered'; allowed without it: consumers that choose would pass a group's next message"
        if given.get("x-overflow", "drop-head") == "drop-head" and given.keys() & {
            "x-max-length",
            "x-max-length-bytes",
            "x-max-pending",
        }:
            problem = (
                "beside a limit with 'x-overflow' 'drop-head'; allowed are 'reject-publish', 'reject-publish-dlx' and 'block'"
            )
            yield asked, problem

    @property
    def group_concurrency(self) -> int | None:
        """`x-group-concurrency`: how many messages of a group may be ready or in work at once; None: no limit."""
        return self._whole("x-group-concurrency")

    @property
    def groups(self) -> str | None:
        """What scripts read of `x-group-concurrency`, `x-fair` and `x-group-order`; None: the queue has no message groups."""
        concurrency, fair = self.group_concurrency, self.arguments.get("x-fair") is True
        if concurrency is None and not fair:
            return None
        return f"{concurrency or '-'} {1 if fair else '-'} {self._text('x-group-order') or 'step-aside'}"

    @property
    def transient(self) -> bool:
        """Whether the queue vanishes whole when it is not used: auto_delete, exclusive or `x-expires`."""
        return self.auto_delete or self.exclusive or "x-expires" in self.arguments

    def ttl_ms(self, default_ms: int) -> int | None:
        """Return after how many unused milliseconds the *queue* goes; None: never.

        `x-expires`, else `default_ms` for an auto_delete or exclusive queue. (Not of its messages.)
        """
        return self._whole("x-expires") or (default_ms if self.transient else None)

    @property
    def durable_subscriber(self) -> bool:
        """`x-durable-subscriber`: a fanout exchange keeps this queue's place while it has no consumer."""
        return self.arguments.get("x-durable-subscriber") is True

    @property
    def max_priority(self) -> int | None:
        """`x-max-priority`: priorities above count as this one; None: the whole range 0-255."""
        return self._whole("x-max-priority")

    @property
    def dead_letter_exchange(self) -> str | None:
        """`x-dead-letter-exchange`: where dead messages go; the empty name is the default exchange."""
        return self._text("x-dead-letter-exchange")

    @property
    def dead_letter_routing_key(self) -> str | None:
        """`x-dead-letter-routing-key`: None keeps the message's own."""
        return self._text("x-dead-letter-routing-key")

    @property
    def always_swept(self) -> bool:
        """Whether messages leave the queue without a consumer, so that somebody has to sweep it all the same.

        They do not where the unused queue goes before its messages expire, as the control queues of Celery's workers do: each
        process would sweep those of all others.
        """
        if not {"x-dead-letter-exchange", "x-redrive"}.isdisjoint(self.arguments):
            return True
        message_ttl_ms, expires_ms = self._whole("x-message-ttl"), self._whole("x-expires")
        return message_ttl_ms is not None and (expires_ms is None or message_ttl_ms < expires_ms)

    @property
    def retry_policies(self) -> RetryPolicies | None:
        """`x-retry-policy`, or the linear one of `x-delayed-retry-min` and `-max`; None: a failed message is ready at once."""
        policy, first = self._text("x-retry-policy"), self._whole("x-delayed-retry-min")
        if policy is None and first is None:
            return None
        # Publishers to other queues do without it.
        from celery_redis_plus.broker.arguments.retry_policy import RetryPolicies, RetryPolicy

        if policy is not None:
            return RetryPolicies.parse(policy)
        return RetryPolicies(RetryPolicy("linear", first or 0, max=self._whole("x-delayed-retry-max") or 0))

    @property
    def event_log(self) -> bool | None:
        """`x-event-log`: whether its messages' lifecycle events are written; None: as the option `event_log` says."""
        value = self.arguments.get("x-event-log")
        return value if isinstance(value, bool) else None

    def rules(self) -> list[tuple[str, int | str]]:
        """Return the fields of the queue's record that the scripts read: name, value."""
        rules: list[tuple[str, int | str]] = []
        for field_name, argument in _RULE_FIELDS.items():
            value = self._whole(argument)
            if value is not None:
                rules.append((field_name, value))
        if self.dead_letter_exchange is not None:
            rules.append(("dlx", 1))
        retry = self.retry_policies
        if retry is not None:
            rules.append(("retry", retry.record))
        redrive = self._text("x-redrive")
        if redrive is not None:
            rules.append(("redrive", redrive))
        if self.groups is not None:
            rules.append(("groups", self.groups))
        rules += self._consumer_rules()
        return rules

    def _consumer_rules(self) -> list[tuple[str, int | str]]:
        rules: list[tuple[str, int | str]] = []
        if self.single_active:
            rules.append(("sac", 1))
        rate = self.rate_per_s
        if rate is not None:
            rules += [("rate", repr(rate)), ("burst", repr(max(1.0, rate / BURST_SHARE)))]
        if self.filtered:
            rules.append(("filtered", 1))
        if rules or self.max_unacked is not None:
            rules.append(("restricted", "declared"))
        return rules

    @property
    def single_active(self) -> bool:
        """`x-single-active-consumer`: of all consumers one gets the messages."""
        return self.arguments.get("x-single-active-consumer") is True

    @property
    def max_unacked(self) -> int | None:
        """`x-max-unacked`: how many messages may be in work at once, over all consumers; None: no limit."""
        return self._whole("x-max-unacked")

    @property
    def filtered(self) -> bool:
        """`x-filtered`: consumers may choose messages by their headers (`x-filter`)."""
        return self.arguments.get("x-filtered") is True

    @property
    def consumer_timeout_ms(self) -> int | None:
        """`x-consumer-timeout`: for how long a consumer may hold a message; None: no limit."""
        return self._whole("x-consumer-timeout")

    @property
    def rate_per_s(self) -> float | None:
        """`x-rate-limit`: how many messages a second go to consumers, over all of them; None: no limit."""
        value = self.arguments.get("x-rate-limit")
        return None if value is None else rate_of(value)

    def encode(self) -> str:
        """Return canonical ASCII JSON for the queue's record `meta:{Q}`, which holds the format's version."""
        packed = pack_table(self.arguments, "a queue")
        flags = {name: True for name in _FLAGS if getattr(self, name)}
        return to_text({**flags, **({"arguments": packed} if packed else {})})

    @classmethod
    def decode(cls, text: str | bytes) -> QueueArguments:
        """Return what `encode` was called on; keys that a newer version added are passed over.

        Raises:
            InvalidArgument: the text is no such record.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"stored queue arguments {text!r} are no JSON") from error
        if not isinstance(data, dict):
            raise InvalidArgument(f"stored queue arguments {text!r} are no JSON object")
        durable, exclusive, auto_delete = (bool(data.get(name, False)) for name in _FLAGS)
        return cls(durable, exclusive, auto_delete, unpack_table(data.get("arguments") or {}))

    def steered(self, queue: str, changes: Mapping[str, object]) -> QueueArguments:
        """Return these arguments with `changes`, which `check_steering` has returned; None takes one away.

        Raises:
            InvalidArgument: one of them does not go with the others.
        """
        flags = {name: getattr(self, name) for name in _FLAGS}
        return QueueArguments.parse(queue, arguments={**self.arguments, **changes}, **flags)

    def with_steering_of(self, other: QueueArguments) -> QueueArguments:
        """Return these arguments with those of `other` that only steer in place of their own."""
        kept = {key: value for key, value in self.arguments.items() if key not in STEERING}
        return replace(self, arguments={**kept, **{key: value for key, value in other.arguments.items() if key in STEERING}})

    def difference(self, current: QueueArguments, queue: str, *, besides: Collection[str] = ()) -> str | None:
        """Return in RabbitMQ's words what keeps this declaration of `queue` from agreeing with `current`.

        None: they agree, at least in all arguments `besides` these. Compared are durable, exclusive, auto_delete, then the
        arguments by name. As in RabbitMQ, the queue type `classic` is the same as none.

        Example:
            >>> new, old = (QueueArguments.parse("q", arguments={"x-max-priority": n}) for n in (5, 10))
            >>> new.difference(old, "q")
            "inequivalent arg 'x-max-priority' for queue 'q': received 5 but current is 10"
        """
        owner = f"queue {queue!r}"
        for name in _FLAGS:
            received, present = getattr(self, name), getattr(current, name)
            if received != present:
                return inequivalent(name, owner, received, present)
        key = first_difference(_comparable(self.arguments, besides), _comparable(current.arguments, besides))
        if key is None:
            return None
        return inequivalent(key, owner, self.arguments.get(key), current.arguments.get(key))

    def _whole(self, key: str) -> int | None:
        value = self.arguments.get(key)
        return value if isinstance(value, int) else None

    def _text(self, key: str) -> str | None:
        value = self.arguments.get(key)
        return value if isinstance(value, str) else None


def _comparable(arguments: Mapping[str, object], besides: Collection[str]) -> dict[str, object]:
    return {key: value for key, value in arguments.items() if (key, value) != ("x-queue-type", "classic") and key not in besides}
