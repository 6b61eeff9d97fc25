"""What each argument of a declaration may be.

Names, meanings and limits are RabbitMQ's (https://www.rabbitmq.com/docs/queues#optional-arguments and
`declare_args` in `rabbit_amqqueue.erl`), but for those marked as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from celery_redis_plus.broker.arguments.field_tables import pack_table
from celery_redis_plus.errors import InvalidArgument

#: Milliseconds, a hundred years: a deadline stays below the 10^13 that a score keeps for the time.
MAX_TTL_MS = 100 * 31_557_600_000
MAX_PRIORITY = 255


class _Rule(NamedTuple):
    """What one argument may be."""

    allowed: str
    fits: Callable[[object], bool]


def _whole_number(minimum: int, maximum: float, unit: str = "") -> _Rule:
    extent = f"from {minimum}" if maximum == inf else f"from {minimum} to {maximum}"
    return _Rule(
        f"a whole number{unit} {extent}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum,
    )


def _one_of(*names: str) -> _Rule:
    return _Rule(f"one of {', '.join(map(repr, names))}", lambda value: value in names)


def _throttle(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, int | float) and 0 < value <= 1)


def _patterns(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(item, str) and item for item in value)


def _parses(parse: Callable[[str], object], value: object) -> bool:
    try:
        return bool(parse(str(value)))
    except ValueError:
        return False


def _is_redrive_rule(value: object) -> bool:
    # Publishers do without it.
    from celery_redis_plus.broker.arguments.redrive_rule import RedriveRule

    return _parses(RedriveRule.parse, value)


def _is_retry_policy(value: object) -> bool:
    # As above.
    from celery_redis_plus.broker.arguments.retry_policy import RetryPolicies

    return _parses(RetryPolicies.parse, value)


_STRING = _Rule("a str", lambda value: isinstance(value, str))
_BOOLEAN = _Rule("true or false", lambda value: isinstance(value, bool))

#: Seconds in the units of Celery's `rate_limit`.
_RATE_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def rate_of(value: object) -> float | None:
    """Return messages a second of a number or of Celery's `100/m`; None for what is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        number, _, unit = value.partition("/")
        try:
            value = float(number) / _RATE_UNITS[unit.strip()]
        except (ValueError, KeyError):
            return None
    return float(value) if isinstance(value, int | float) and 1e-4 <= value <= 1e6 else None


_RULES: dict[str, _Rule] = {
    "x-expires": _whole_number(1, MAX_TTL_MS, " of ms"),
    "x-message-ttl": _whole_number(0, MAX_TTL_MS, " of ms"),
    "x-max-priority": _whole_number(0, MAX_PRIORITY),
    "x-max-length": _whole_number(0, inf),
    "x-max-length-bytes": _whole_number(0, inf, " of bytes"),
    # -1 is RabbitMQ 4's "no limit".
    "x-delivery-limit": _whole_number(-1, inf),
    "x-consumer-timeout": _whole_number(1, MAX_TTL_MS, " of ms"),
    # RabbitMQ 4.3: https://www.rabbitmq.com/docs/quorum-queues#delayed-retry
    "x-delayed-retry-min": _whole_number(1, MAX_TTL_MS, " of ms"),
    "x-delayed-retry-max": _whole_number(1, MAX_TTL_MS, " of ms"),
    # Ours: what RabbitMQ has no argument for.
    "x-max-pending": _whole_number(1, inf),
    "x-throttle": _Rule("true, false, or a share of free room over 0 and up to 1", _throttle),
    "x-accept-types": _Rule("a list of patterns, each a str that is not empty", _patterns),
    "x-retry-policy": _Rule(
        "a policy such as 'exponential first=1000 max=60000', of the kinds none, constant, linear, exponential, fibonacci, list, "
        "or several, 'exponential first=1s; ValueError: none'",
        _is_retry_policy,
    ),
    "x-redrive": _Rule(
        "a text such as 'after=10m times=3 rate=50/s': after how long, how often each, how many a second at most",
        _is_redrive_rule,
    ),
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx", "block"),
    "x-dead-letter-exchange": _STRING,
    "x-dead-letter-routing-key": _STRING,
    "x-single-active-consumer": _BOOLEAN,
    # Ours, too.
    "x-max-unacked": _whole_number(1, inf),
    "x-rate-limit": _Rule(
        "a number of messages a second, or one with its unit such as '100/m' (s, m, h), from 0.0001 to 1000000 a second",
        lambda value: rate_of(value) is not None,
    ),
    "x-priority-ageing": _whole_number(1, MAX_TTL_MS // 1000, " of ms"),
    # Ours: see docs/broadcasts.md.
    "x-durable-subscriber": _BOOLEAN,
    "x-event-log": _BOOLEAN,
    "x-filtered": _BOOLEAN,
    # Ours: see docs/message-groups.md.
    "x-group-concurrency": _whole_number(1, 100_000),
    "x-group-order": _one_of("strict", "step-aside"),
    "x-fair": _BOOLEAN,
}

#: Arguments that only steer what is done with messages: they may change while the queue lives. All others say what it is: the
#: places of its messages (`x-max-priority`, `x-priority-ageing`), its life, or who may consume it follow from them.
STEERING = frozenset(
    {
        "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-pending", "x-overflow", "x-throttle", "x-accept-types",
        "x-delivery-limit", "x-delayed-retry-min", "x-delayed-retry-max", "x-retry-policy", "x-redrive", "x-consumer-timeout",
        "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-single-active-consumer", "x-max-unacked", "x-rate-limit",
    }
)  # fmt: skip

#: What arguments begin with that a later release will know: until then no queue may have them.
RESERVED_PREFIX = "x-group-"

#: Of all arguments that have an effect, what they may be.
ALLOWED = {name: rule.allowed for name, rule in _RULES.items()}
KNOWN_ARGUMENTS = frozenset(ALLOWED)


def check_arguments(owner: str, arguments: Mapping[str, object] | None) -> dict[str, object]:
    """Return the arguments of a declaration as they are kept, without those that are None; `owner` is for errors.

    Raises:
        InvalidArgument: naming owner, argument, value and what is allowed.
    """
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    pack_table(given, owner)
    return {key: _checked(owner, key, value) for key, value in given.items()}


def check_steering(owner: str, changes: Mapping[str, object]) -> dict[str, object]:
    """Return changes of arguments as they are kept; None takes one away. `owner` is for errors.

    Raises:
        InvalidArgument: an argument does not only steer, or as `check_arguments`.
    """
    fixed = sorted(changes.keys() - STEERING)
    if fixed:
        raise InvalidArgument(
            f"argument {fixed[0]!r} of {owner} cannot change while a queue lives; allowed: {', '.join(sorted(STEERING))}"
        )
    return {**dict.fromkeys(changes), **check_arguments(owner, changes)}


def _checked(owner: str, key: str, value: object) -> object:
    """Return the value as it is kept: 10000.0, which arithmetic on seconds makes, becomes 10000."""
    if key.startswith(RESERVED_PREFIX) and key not in _RULES:
        raise InvalidArgument(
            f"argument {key!r} of {owner} is not known by this release: names that begin with {RESERVED_PREFIX!r} are reserved"
        )
    rule = _RULES.get(key)
    if rule is None:
        return value
    kept = int(value) if isinstance(value, float) and value.is_integer() else value
    if not rule.fits(kept):
        what = f"argument {key!r} of {owner} is {value!r:.100} ({type(value).__name__})"
        raise InvalidArgument(f"{what}; allowed is {rule.allowed}")
    return kept
