"""Every transport option once: name, type, default, unit and what it does.

`Options` validates by this declaration, and the table in the documentation is printed from it (`table()`).
Durations are seconds, as everywhere in Celery's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery_redis_plus import option_types as kinds
from celery_redis_plus.errors import OptionError
from celery_redis_plus.events import TRANSITIONS
from celery_redis_plus.kombu_options import MEANINGLESS, OF_KOMBU, unknown

_SECONDS = kinds.number(1)
_TIMEOUT = kinds.number(0.01)


@dataclass(frozen=True, slots=True)
class Options:
    """The transport options of one connection, validated.

    `Options.from_mapping(transport_options)` is for what a user wrote. `Options(polling_interval=1)` checks
    values as strictly, but knows nothing of the other names that stand in the same dict.

    Raises:
        OptionError: an option is unknown, of the wrong type or out of range.
    """

    visibility_timeout: float = kinds.option(
        kinds.number(3),
        300,
        "How long a claimed message stays with a worker that gives no sign of life; then it is ready again. "
        "A living worker renews it every sixth of this time, every 5 s at the latest, so tasks may run far longer.",
        unit="s",
    )
    polling_interval: float = kinds.option(
        kinds.number(0.05, 3600),
        10,
        "The longest time that an idle consumer blocks in one call before it looks again by itself.",
        unit="s",
    )
    fetch_batch_size: int | None = kinds.option(
        kinds.number(1, 500, integer=True),
        None,
        "The most messages that one claim takes.",
        unit="messages",
        none="as many as the prefetch leaves room for, at most 100 without one",
    )
    overfetch_factor: float = kinds.option(
        kinds.number(1, 100),
        1,
        "How many times its prefetch a consumer may hold. What is beyond the prefetch waits in the process, claimed, so that the "
        "next message is there without a round trip, and no other consumer gets it meanwhile.",
        unit="ratio",
    )
    min_fetch_interval: float = kinds.option(
        kinds.number(0, 3600),
        0,
        "The least time between two claims of a connection: larger batches, later. Others may take what comes meanwhile.",
        unit="s",
    )
    graceful_timeout: float | None = kinds.option(
        kinds.number(0),
        None,
        "How long the tasks of a Celery worker that was told to stop may go on; then they are ended (prefork) or left, their "
        "messages go back, and the worker ends. A second signal does so at once.",
        unit="s",
        none="Celery's own rules: as long as they take",
    )
    global_keyprefix: str = kinds.option(
        kinds.text(), "", "Put before every key, so that several applications can share a database."
    )
    priority_order: str | None = kinds.option(
        kinds.choice("high-first", "low-first"),
        None,
        "Which priority is delivered first: `high-first` (255 first, the direction of RabbitMQ) or "
        "`low-first` (0 first, the direction of kombu's own Redis transport).",
        none="high-first",
    )
    consumer_heartbeat_timeout: float = kinds.option(
        _SECONDS,
        60,
        "A consumer that gave no sign of life for so long counts as dead: it leaves the lists of its queues, and what it had of "
        "them alone (being the single active consumer, a higher priority, exclusive use) passes on. A living one gives a sign "
        "every third of this time.",
        unit="s",
    )
    consumer_priority: int = kinds.option(
        kinds.number(-1_000_000, 1_000_000, integer=True),
        0,
        "The priority of this connection's consumers where a queue's consumer arguments have no `x-priority`: consumers of a "
        "higher priority get every message while they have credit. `celery worker --consumer-priority` sets it for one worker.",
    )
    queue_order_strategy: str = kinds.option(
        kinds.choice("round_robin", "sorted", "priority"),
        "round_robin",
        "How a consumer of several queues shares its attention: in turn, by name, or the first declared first.",
    )
    fanout_prefix: bool | str = kinds.option(
        kinds.one_of(kinds.flag(), kinds.text("a text in which {db} is the database number", r"(?s:.+)")),
        True,
        "Prefix of fanout streams: True for `/{db}.`, False for none, or a text of your own.",
    )
    fanout_patterns: bool = kinds.option(
        kinds.flag(), True, "Filter fanout messages by routing key, with the wildcards of a topic exchange."
    )
    stream_maxlen: int = kinds.option(
        kinds.number(1, integer=True),
        10_000,
        "About how many messages a fanout stream keeps; a subscriber that falls further behind misses some, "
        "which is counted and logged.",
        unit="messages",
    )
    stream_max_age: float | None = kinds.option(
        _SECONDS,
        86_400,
        "How long a fanout stream keeps a message at most, whoever still wants it; what all subscribers have processed goes "
        "before that.",
        unit="s",
        none="any age, within stream_maxlen",
    )
    subscriber_timeout: float = kinds.option(
        _SECONDS,
        300,
        "A fanout subscriber that gave no sign of life for so long, and then not within 30 s more, is dead: it is forgotten, "
        "and what it had not read is counted and logged. A client that reconnects within this time resumes where it was.",
        unit="s",
    )
    transient_queue_ttl: float = kinds.option(
        _SECONDS, 300, "An auto-delete queue that nobody uses vanishes after this time, with its messages.", unit="s"
    )
    delivery_limit: int | None = kinds.option(
        kinds.number(1, integer=True),
        20,
        "How often the delivery of a message may fail (its worker died, or it was rejected with requeue) before it becomes a "
        "dead letter. The queue argument `x-delivery-limit` goes first.",
        unit="deliveries",
        none="no limit",
    )
    dead_letter_max: int = kinds.option(
        kinds.number(0, integer=True),
        10_000,
        "How many dead letters a queue keeps; beyond it the oldest are removed, counted and logged.",
        unit="messages",
    )
    dead_letter_ttl: float = kinds.option(
        kinds.number(1), 604_800, "How long a queue keeps a dead letter; older ones are removed, counted and logged.", unit="s"
    )
    publish_dedup_window: float = kinds.option(
        _SECONDS,
        900,
        "How long a publish whose reply was lost can be retried without being doubled; make it longer than "
        "what the retry policy allows.",
        unit="s",
    )
    wait_replicas: int = kinds.option(
        kinds.number(0, integer=True),
        0,
        "How many replicas must confirm each publish (the server's WAIT, in the same round trip) before it counts as done. "
        "With fewer, `NotReplicated` is raised: the message is stored all the same. 0 asks for none, and costs nothing.",
        unit="replicas",
    )
    wait_replicas_timeout: float = kinds.option(
        _TIMEOUT, 1, "How long a publish waits for its replicas; only with `wait_replicas`.", unit="s"
    )
    ignore_unroutable_exchanges: str = kinds.option(
        kinds.text("names of exchanges, separated by commas, with * and ?"),
        "celeryev,*.pidbox,reply*",
        "Exchanges where a message without a queue or subscriber is only counted. Elsewhere it becomes a "
        "dead letter of the queue `celery_redis_plus.undelivered`, or an error if it is `mandatory`. `celeryev` also stands for "
        "the exchange that Celery's setting `event_exchange` names.",
    )
    publish_timeout: float = kinds.option(
        kinds.number(0),
        30,
        "How long a publish may wait: for room in a full queue with `x-overflow: block` (then it is an error), and at most "
        "for the throttle of a queue with `x-throttle`. 0 does not wait.",
        unit="s",
    )
    throttle_threshold: float = kinds.option(
        kinds.number(0, 1),
        0.5,
        "From which share of free room on publishers into a queue with `x-throttle: true` slow down.",
        unit="ratio",
    )
    accept: Mapping[str, Any] | None = kinds.option(
        kinds.instance("dict", "a mapping of queue names to what they accept", Mapping),
        None,
        "What queues accept, checked in Python at publish: queue name to a callable, a pydantic model, a msgspec Struct, a "
        "dataclass, or a list of these. `configure_app(accept=…)` sets it.",
        none="what x-accept-types says",
    )
    message_ttl: None = kinds.option(
        kinds.nothing(
            "only None. A number would silently delete tasks that wait or have a long ETA. To let messages "
            "expire, give the queue the argument x-message-ttl, or the task expires="
        ),
        None,
        "Not supported: no live message of a lasting queue ever expires. The option exists to refuse, with "
        "an explanation, what would silently delete waiting tasks and long ETAs.",
    )
    socket_timeout: float | None = kinds.option(
        _TIMEOUT,
        5,
        "How long to wait for the reply to a command; then the connection is dropped and opened anew. The "
        "blocking calls of idle consumers get their own time on top.",
        unit="s",
        none="no limit",
    )
    socket_connect_timeout: float | None = kinds.option(
        _TIMEOUT,
        5,
        "How long to wait for a connection, and for each reply while it is set up.",
        unit="s",
        none="as socket_timeout",
    )
    socket_keepalive: bool | None = kinds.option(
        kinds.flag(), None, "TCP keepalive, which notices a peer that vanished without a word.", none="on"
    )
    socket_keepalive_options: Mapping[int, int] | None = kinds.option(
        kinds.number_mapping(),
        None,
        "TCP options by number, e.g. `{socket.TCP_KEEPIDLE: 60}`.",
        none="idle 30 s, interval 5 s, 3 probes, where the platform has them",
    )
    health_check_interval: float = kinds.option(
        kinds.number(0),
        25,
        "A connection that was silent for so long is checked with a PING before it is trusted; 0 switches it off.",
        unit="s",
    )
    max_connections: int = kinds.option(
        kinds.number(1, integer=True),
        10,
        "Accepted for compatibility. A kombu connection needs one connection for commands, and two more while it consumes; "
        "there is no pool to limit.",
        unit="connections",
    )
    retry_on_timeout: bool | None = kinds.option(
        kinds.flag(),
        None,
        "Accepted for compatibility. redis-py would send a command again whose reply was lost, which may "
        "run it twice; this transport repeats by itself what is safe to repeat.",
        none="no effect either way",
    )
    client_name: str | None = kinds.option(
        kinds.text("printable ASCII without spaces", r"[!-~]+"),
        None,
        "The name of all connections in CLIENT LIST.",
        none="celery-redis-plus: and the connection's purpose",
    )
    credential_provider: Any = kinds.option(  # noqa: RUF009 - immutable as all others; Any hides it
        kinds.instance("object or str", "a redis.CredentialProvider, or the dotted path of such a class"),
        None,
        "Where user name and password come from, instead of the URL.",
        none="the URL",
        secret=True,
    )
    ssl: bool | Mapping[str, Any] | None = kinds.option(
        kinds.one_of(kinds.flag(), kinds.instance("dict", "a mapping of redis-py's ssl_* arguments", Mapping)),
        None,
        "TLS for a URL that does not say so: True (the server's certificate is checked), or redis-py's "
        "`ssl_*` arguments. Celery's `broker_use_ssl` goes first.",
        none="as the URL says",
        secret=True,
    )
    event_log: bool | None = kinds.option(
        kinds.flag(),
        None,
        "Write the lifecycle events of the messages in lasting queues to streams, for `message`, the Spark pipeline and other "
        "readers. True and False are set in each queue that is declared, for all processes; a queue's `x-archive` goes first.",
        none="queues stay as they are; new ones have none",
    )
    error_traceback_bytes: int = kinds.option(
        kinds.number(0, 10_000, integer=True),
        0,
        "How much of a failed task's traceback, from its end, is kept with its message and its dead letter. Tracebacks hold "
        "source lines and, in the exception's text, perhaps personal data: all who read the broker can read them.",
        unit="bytes",
    )
    event_log_sample: float = kinds.option(
        kinds.number(0.001, 1), 1, "The share of messages whose events are written, each with all of its events."
    )
    event_log_events: tuple[str, ...] | None = kinds.option(
        kinds.names(*TRANSITIONS), None, "The events that are written, by name.", none="all"
    )
    event_log_payload: bool = kinds.option(
        kinds.flag(), False, "Write the messages' envelopes and bodies (up to 1 MB) into their event `published`."
    )
    event_log_index: bool = kinds.option(
        kinds.flag(),
        False,
        "Keep for each message where its events are, and for each Celery task id its messages: `message` then finds finished "
        "ones at once, and by task id. About 300 bytes a message, for `event_log_max_age`.",
    )
    event_log_maxlen: int = kinds.option(
        kinds.number(0, integer=True),
        100_000,
        "How many events of a queue are kept; older ones go once every registered reader has them.",
        unit="events",
    )
    event_log_hard_maxlen: int = kinds.option(
        kinds.number(0, integer=True),
        1_000_000,
        "How many events of a queue are kept for readers that lag; beyond it the oldest go unread, which is counted and logged.",
        unit="events",
    )
    event_log_max_age: float = kinds.option(
        _SECONDS, 604_800, "How long events are kept; older ones go once every registered reader has them.", unit="s"
    )
    deadletter_queue: str | None = kinds.option(
        kinds.text("the name of a queue", r"(?s:.+)"),
        None,
        "Queue for messages that no other queue takes, and no alternate exchange.",
        none="they become dead letters, see `ignore_unroutable_exchanges`",
    )

    #: Names of the options that the user gave, as opposed to defaults.
    explicit: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.name != "explicit":
                object.__setattr__(self, option.name, kinds.checked(option, getattr(self, option.name)))
        if self.min_fetch_interval > self.polling_interval:
            raise OptionError(
                f"transport option min_fetch_interval={self.min_fetch_interval:g} is not allowed; allowed: at most "
                f"{self.polling_interval:g} (s), the longest time between two claims (polling_interval)"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Options:
        """Return the options in `mapping`, a connection's `transport_options` or a URL's query.

        Numbers and booleans may be text ("300", "true"). A None means "not set" where it has no meaning of
        its own. Passed over are the names that kombu itself writes into the same dict (retry policies), and
        those that mean nothing here (see `foreign_options`).

        Raises:
            OptionError: an option is unknown (the message has the nearest name), of the wrong type or out of
            range.
        """
        declared = {option.name: option for option in fields(cls) if option.name != "explicit"}
        given: dict[str, Any] = {}
        for name, value in mapping.items():
            if name in declared:
                if value is not None or declared[name].metadata["none"]:
                    given[name] = value
            elif name not in MEANINGLESS and name not in OF_KOMBU:
                raise unknown(name, declared)
        return cls(**given, explicit=frozenset(given))

    def stream_prefix(self, db: int) -> str:
        """Return what stands before an exchange's name in the key of its stream, as `fanout_prefix` says."""
        prefix = "/{db}." if self.fanout_prefix is True else self.fanout_prefix or ""
        return prefix.replace("{db}", str(db))

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
        if option.name != "explicit":
            meta = option.metadata
            default = repr(option.default)
            yield OptionRow(option.name, meta["type"], default, meta["unit"], meta["allowed"], meta["doc"])
