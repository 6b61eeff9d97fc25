"""Every transport option once: name, type, default, unit and what it does.

`Options` validates by this declaration, and the table in the documentation is printed from it (`table()`). Durations are
seconds, as everywhere in Celery's configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from celery_redis_plus.errors import OptionError
from celery_redis_plus.option_types import Anything, Choice, Flag, IntMapping, Number, OneOf, OptionType, Text


def _option(kind: OptionType, default: Any, doc: str, *, unit: str = "", none: str = "") -> Any:
    """Declare an option. `none` says what None means; without it, a given None means "not set"."""
    metadata = {
        "kind": kind,
        "type": f"{kind.name} or None" if none else kind.name,
        "allowed": f"{kind.allowed}, or None ({none})" if none else kind.allowed,
        "unit": unit,
        "doc": doc,
        "none": bool(none),
    }
    return field(default=default, metadata=metadata)


_SECONDS = Number(minimum=1)
_TIMEOUT = Number(minimum=0.01)


@dataclass(frozen=True, slots=True)
class Options:
    """The transport options of one connection, validated.

    Use `Options.from_mapping(transport_options)` for what a user wrote; `Options(polling_interval=1)` checks as strictly
    but knows nothing of the names that kombu writes into the same dict.

    Raises:
        OptionError: an option is unknown, of the wrong type or out of range.
    """

    visibility_timeout: float = _option(
        Number(minimum=3),
        300,
        "How long a claimed message stays with a worker that gives no sign of life; then it is ready again. A living worker "
        "renews it every third of this time, so tasks may run far longer.",
        unit="s",
    )
    polling_interval: float = _option(
        Number(minimum=0.05, maximum=3600),
        10,
        "The longest time that an idle consumer blocks in one call before it looks again by itself.",
        unit="s",
    )
    global_keyprefix: str = _option(
        Text(), "", "Put before every key, so that several applications can share a database."
    )
    priority_order: str | None = _option(
        Choice(("high-first", "low-first")),
        None,
        "Which priority is delivered first: `high-first` (255 first, as RabbitMQ) or `low-first` (0 first, as kombu's own Redis "
        "transport).",
        none="high-first",
    )
    queue_order_strategy: str = _option(
        Choice(("round_robin", "sorted", "priority")),
        "round_robin",
        "How a consumer of several queues shares its attention: in turn, by name, or always the first declared first.",
    )
    fanout_prefix: bool | str = _option(
        OneOf((Flag(), Text("a prefix in which {db} stands for the database number", r"(?s:.+)"))),
        True,
        "Prefix of fanout streams: True for `/{db}.`, False for none, or a text of your own.",
    )
    fanout_patterns: bool = _option(
        Flag(), True, "Filter fanout messages by routing key, with the wildcards of a topic exchange."
    )
    stream_maxlen: int = _option(
        Number(minimum=1, integer=True),
        10_000,
        "About how many messages a fanout stream keeps; a subscriber that falls further behind misses some, which is counted "
        "and logged.",
        unit="messages",
    )
    subscriber_timeout: float = _option(
        _SECONDS, 300, "A fanout subscriber that gave no sign of life for so long is forgotten.", unit="s"
    )
    transient_queue_ttl: float = _option(
        _SECONDS,
        300,
        "An auto-delete or exclusive queue that nobody uses vanishes after this time, with its messages.",
        unit="s",
    )
    publish_dedup_window: float = _option(
        _SECONDS,
        900,
        "How long a publish whose reply was lost can be retried without being doubled. Longer than your retry policy.",
        unit="s",
    )
    message_ttl: None = _option(
        Anything("None", "None"),
        None,
        "Not supported, and None by default: no live message of a lasting queue ever expires. It exists to refuse, with an "
        "explanation, what would silently delete waiting tasks and long ETAs; give a queue the argument `x-message-ttl` or a "
        "message `expiration` instead.",
        none="nothing expires",
    )
    socket_timeout: float | None = _option(
        _TIMEOUT,
        5,
        "How long to wait for the reply to a command; then the connection is dropped and opened anew. Blocking calls of idle "
        "consumers get their own time on top.",
        unit="s",
        none="no limit",
    )
    socket_connect_timeout: float | None = _option(
        _TIMEOUT,
        5,
        "How long to wait for a connection, and for each reply while it is set up.",
        unit="s",
        none="as socket_timeout",
    )
    socket_keepalive: bool | None = _option(
        Flag(), None, "TCP keepalive, which notices a peer that vanished without a word.", none="on"
    )
    socket_keepalive_options: Mapping[int, int] | None = _option(
        IntMapping(),
        None,
        "TCP options by number, e.g. `{socket.TCP_KEEPIDLE: 60}`.",
        none="idle 30 s, interval 5 s, 3 probes, where the platform has them",
    )
    health_check_interval: float = _option(
        Number(minimum=0),
        25,
        "A connection that was silent for so long is checked with a PING before it is trusted; 0 switches this off.",
        unit="s",
    )
    max_connections: int = _option(
        Number(minimum=1, integer=True),
        10,
        "The most command connections that one kombu connection opens.",
        unit="connections",
    )
    retry_on_timeout: bool | None = _option(
        Flag(),
        None,
        "Accepted for compatibility. redis-py would send a command again whose reply was lost, which may run it twice; this "
        "transport repeats by itself what is safe to repeat.",
        none="no effect either way",
    )
    client_name: str | None = _option(
        Text("printable ASCII without spaces", r"[!-~]+"),
        None,
        "The name of all connections in CLIENT LIST.",
        none="celery-redis-plus: and the connection's purpose",
    )
    credential_provider: Any = _option(
        Anything("object or str", "a redis.CredentialProvider, or the dotted path of such a class"),
        None,
        "Where user name and password come from, instead of the URL.",
        none="the URL",
    )
    ssl: bool | Mapping[str, Any] | None = _option(
        OneOf((Flag(), Anything("dict", "a mapping of ssl_* arguments of redis-py"))),
        None,
        "TLS for a URL that does not say so: True (the server's certificate is checked), or redis-py's `ssl_*` arguments. "
        "Celery's `broker_use_ssl` goes first.",
        none="as the URL says",
    )
    deadletter_queue: str | None = _option(
        Text("the name of a queue", r"(?s:.+)"),
        None,
        "Queue for messages that no queue takes.",
        none="they are unroutable",
    )

    #: Names of the options that the user gave, as opposed to defaults.
    explicit: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in fields(self):
            if "kind" in option.metadata:
                object.__setattr__(self, option.name, _checked(option, getattr(self, option.name)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Options:
        """Return the options in `mapping`, a connection's `transport_options` or a URL's query.

        Numbers and booleans may be text ("300", "true"). A None means "not set" where it has no meaning of its own.
        Names that kombu writes into the same dict (retry policies) and names that mean nothing here (see `ignored`) are
        passed over.

        Raises:
            OptionError: an option is unknown (the message has the nearest name), of the wrong type or out of range.
        """
        declared = {option.name: option for option in fields(cls) if "kind" in option.metadata}
        given: dict[str, Any] = {}
        for name, value in mapping.items():
            if name in declared:
                if value is not None or declared[name].metadata["none"]:
                    given[name] = value
            elif name not in _MEANINGLESS and name not in _OF_KOMBU:
                raise OptionError(_unknown(name, declared))
        return cls(**given, explicit=frozenset(given))

    def was_set(self, name: str) -> bool:
        """Whether the user gave the option `name`, be it with the default's value."""
        return name in self.explicit


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One line of the options' table in the documentation."""

    name: str
    type: str
    default: str
    unit: str
    allowed: str
    doc: str


def table() -> Iterator[OptionRow]:
    """Yield every option in the order of declaration, for the documentation."""
    for option in fields(Options):
        meta = option.metadata
        if "kind" in meta:
            yield OptionRow(
                option.name, meta["type"], repr(option.default), meta["unit"], meta["allowed"], meta["doc"]
            )


def ignored(mapping: Mapping[str, Any]) -> list[str]:
    """Return the names in `mapping` that kombu's Redis transport or virtual transports know and that mean nothing here.

    They are accepted, so that an existing application runs unchanged; whoever opens the connection logs them once.
    """
    return sorted(name for name in mapping if name in _MEANINGLESS)


#: Options of kombu's Redis transport, and of others that an application may come from, that have no meaning here.
_MEANINGLESS = frozenset(
    {
        *(
            "ack_emulation",
            "priority_steps",
            "sep",
            "body_encoding",
            "reauth_check_interval",
            "sentinel_fanout_compat",
        ),
        *("unacked_key", "unacked_index_key", "unacked_mutex_key", "unacked_mutex_expire"),
        *("unacked_restore_limit", "unacked_restore_interval", "unacked_restore_throttle"),
        # py-amqp's: here every publish is confirmed by the server's reply.
        *("confirm_publish", "confirm_timeout", "client_properties", "login_method"),
        *("connect_timeout", "read_timeout", "write_timeout"),
    }
)

#: What kombu 5.7 reads from, or writes into, the same dict: `Connection._extract_failover_opts`, and the retry policy with
#: which `Producer.publish(retry=True)` updates it (the arguments of `Connection.ensure`).
_OF_KOMBU = frozenset(
    {
        *(
            "max_retries",
            "interval_start",
            "interval_step",
            "interval_max",
            "connect_retries_timeout",
            "timeout",
        ),
        *("errback", "callback", "on_revive", "retry_errors", "reraise_as_library_errors"),
    }
)

_REFUSED = {
    name: "Redis Sentinel is not supported by this version; give the address of the primary"
    for name in ("master_name", "min_other_sentinels", "sentinel_kwargs")
}


def _checked(option: Any, value: Any) -> Any:
    meta = option.metadata
    if value is None and (meta["none"] or option.default is None):
        return None
    if value is None and option.default is not MISSING:
        return option.default
    try:
        if option.name == "message_ttl":
            raise ValueError
        return meta["kind"].parse(value)
    except (ValueError, OverflowError):
        raise OptionError(_refusal(option, value)) from None


def _refusal(option: Any, value: Any) -> str:
    if option.name == "message_ttl":
        return (
            f"transport option message_ttl={value!r} is not supported: it would silently delete tasks that wait or have a long "
            "ETA. Leave it out; to let messages expire, give the queue the argument x-message-ttl or use expires="
        )
    unit = f" ({option.metadata['unit']})" if option.metadata["unit"] else ""
    return f"transport option {option.name}={value!r} is not allowed; allowed: {option.metadata['allowed']}{unit}"


def _unknown(name: str, declared: Mapping[str, Any]) -> str:
    if name in _REFUSED:
        return f"transport option {name!r}: {_REFUSED[name]}"
    near = difflib.get_close_matches(str(name), declared, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(sorted(declared))}"
    return f"unknown transport option {name!r}{hint}"
