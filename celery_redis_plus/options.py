"""Every transport option once: name, type, default, unit and what it does.

`Options` validates by this declaration, and the table in the documentation is printed from it (`table()`).
Durations are seconds, as everywhere in Celery's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_redis_plus import option_types as kinds
from celery_redis_plus.errors import OptionError
from celery_redis_plus.events import TRANSITIONS
from celery_redis_plus.kombu_options import IGNORED_OPTIONS, KOMBU_OPTIONS, unknown

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
        "The time for which a claimed message belongs to a worker without a heartbeat; then it is ready "
        "again. A live worker sends a heartbeat every sixth of this time, at least every 5 s, so tasks may "
        "run far longer.",
        unit="s",
    )
    polling_interval: float = kinds.option(
        kinds.number(0.05, 3600),
        10,
        "The longest time that an idle consumer waits for a wake-up before it checks its queues.",
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
        "The number of messages that a process may claim, as a multiple of its prefetch. Messages beyond the "
        "prefetch wait in the process, so the next one needs no round trip. Other consumers cannot get them.",
        unit="ratio",
    )
    min_fetch_interval: float = kinds.option(
        kinds.number(0, 3600),
        0,
        "The least time between two claims of a connection. Batches are larger and later; other consumers may"
        " take new messages first.",
        unit="s",
    )
    graceful_timeout: float | None = kinds.option(
        kinds.number(0),
        None,
        "The time that a stopping Celery worker gives its running tasks. Then it ends them (prefork) or "
        "leaves them, releases their messages, and exits. A second signal has the same effect at once.",
        unit="s",
        none="Celery's own rules: as long as they take",
    )
    global_keyprefix: str = kinds.option(
        kinds.text(), "", "Prefix of every key, so that several applications can share a database."
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
        "A consumer without a heartbeat for this time counts as dead and leaves the lists of its queues. Its "
        "privileges pass on: the turn as single active consumer, a higher priority, exclusive use. A live "
        "consumer sends a heartbeat every third of this time.",
        unit="s",
    )
    consumer_priority: int = kinds.option(
        kinds.number(-1_000_000, 1_000_000, integer=True),
        0,
        "The priority of this connection's consumers, unless a queue's consumer arguments have `x-priority`. "
        "Consumers of a higher priority get every message while they have credit. `celery worker "
        "--consumer-priority` sets it for one worker.",
    )
    connection_lost_grace: float = kinds.option(
        kinds.number(0, 3600),
        5,
        "The time without any connection after which a consuming process counts as lost: its messages are put back as failed "
        "deliveries, and its consumers leave. 0 switches this off; the visibility timeout then covers it.",
        unit="s",
    )
    queue_order_strategy: str = kinds.option(
        kinds.choice("round_robin", "sorted", "priority"),
        "round_robin",
        "The order in which a consumer of several queues claims from them: in turn, by name, or the first declared first.",
    )
    fanout_prefix: bool | str = kinds.option(
        kinds.one_of(kinds.flag(), kinds.text("a text in which {db} is the database number", r"(?s:.+)")),
        True,
        "Prefix of fanout streams: True for `/{db}.`, False for none, or another text.",
    )
    fanout_patterns: bool = kinds.option(
        kinds.flag(), True, "Filter fanout messages by routing key, with the wildcards of a topic exchange."
    )
    stream_maxlen: int = kinds.option(
        kinds.number(1, integer=True),
        10_000,
        "The approximate number of messages that a fanout stream keeps. A subscriber that falls further "
        "behind misses some; they are counted and logged.",
        unit="messages",
    )
    stream_max_age: float | None = kinds.option(
        _SECONDS,
        86_400,
        "The longest time that a fanout stream keeps a message, read or unread. Messages that all subscribers"
        " have processed are removed earlier.",
        unit="s",
        none="any age, within stream_maxlen",
    )
    subscriber_timeout: float = kinds.option(
        _SECONDS,
        300,
        "A fanout subscriber without a heartbeat for this time and another 30 s is dead. It is removed, and "
        "its unread messages are counted and logged. A client that reconnects within this time resumes at its"
        " position.",
        unit="s",
    )
    transient_queue_ttl: float = kinds.option(
        _SECONDS, 300, "An unused auto-delete queue is removed after this time, with its messages.", unit="s"
    )
    delivery_limit: int | None = kinds.option(
        kinds.number(1, integer=True),
        20,
        "The number of failed deliveries (its worker died, or it was rejected with requeue) after which a "
        "message becomes a dead letter. The queue argument `x-delivery-limit` overrides it.",
        unit="deliveries",
        none="no limit",
    )
    dead_letter_max: int = kinds.option(
        kinds.number(0, integer=True),
        10_000,
        "The number of dead letters that a queue keeps. Beyond it the oldest are removed, counted and logged.",
        unit="messages",
    )
    dead_letter_ttl: float = kinds.option(
        kinds.number(1),
        604_800,
        "The time for which a queue keeps a dead letter. Older ones are removed, counted and logged.",
        unit="s",
    )
    publish_dedup_window: float = kinds.option(
        _SECONDS,
        900,
        "The time within which a publish whose reply was lost can be retried without a second message. It has"
        " to exceed the duration of your retry policy.",
        unit="s",
    )
    wait_replicas: int = kinds.option(
        kinds.number(0, integer=True),
        0,
        "The number of replicas that must confirm each publish (the server's WAIT, in the same round trip). "
        "With fewer, `NotReplicated` is raised, and the message is stored nevertheless. What goes to the exchanges of "
        "`ignore_unroutable_exchanges` (remote control, events) does not need them. 0 asks for none, and costs nothing.",
        unit="replicas",
    )
    wait_replicas_timeout: float = kinds.option(
        _TIMEOUT, 1, "The time that a publish waits for its replicas; only with `wait_replicas`.", unit="s"
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
        "The longest wait of a publish. In a full queue with `x-overflow: block` it then raises an error. It "
        "also bounds each sleep of a queue with `x-throttle`. 0 does not wait.",
        unit="s",
    )
    throttle_threshold: float = kinds.option(
        kinds.number(0, 1),
        0.5,
        "The share of free room below which publishers into a queue with `x-throttle: true` slow down.",
        unit="ratio",
    )
    accept: Mapping[str, Any] | None = kinds.option(
        kinds.instance("dict", "a mapping of queue names to what they accept", Mapping),
        None,
        "The accepted messages by queue name, checked in Python at publish: a callable, a pydantic model, a "
        "msgspec Struct, a dataclass, or a list of these. `configure_app(accept=…)` sets it.",
        none="what x-accept-types says",
    )
    message_ttl: None = kinds.option(
        kinds.nothing(
            "only None. A number would silently delete tasks that wait or have a long ETA. To let messages "
            "expire, give the queue the argument x-message-ttl, or the task expires="
        ),
        None,
        "Not supported, because it would silently delete waiting tasks and tasks with a long ETA. A value "
        "other than None raises an error that explains this.",
    )
    socket_timeout: float | None = kinds.option(
        _TIMEOUT,
        5,
        "The longest wait for the reply to a command; then the connection is closed and opened again. "
        "Blocking calls of idle consumers have their own time in addition.",
        unit="s",
        none="no limit",
    )
    socket_connect_timeout: float | None = kinds.option(
        _TIMEOUT,
        5,
        "The longest wait for a connection, and for each reply during its set-up.",
        unit="s",
        none="as socket_timeout",
    )
    socket_keepalive: bool | None = kinds.option(
        kinds.flag(), None, "TCP keepalive, which detects a peer that vanished without closing the connection.", none="on"
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
        "A connection that was silent for this time is checked with a PING before its next use. 0 turns the check off.",
        unit="s",
    )
    client_name: str | None = kinds.option(
        kinds.text("printable ASCII without spaces", r"[!-~]+"),
        None,
        "The name of all connections in CLIENT LIST.",
        none="celery-redis-plus: and the connection's purpose",
    )
    master_name: str | None = kinds.option(
        kinds.text("the name of a master", r"\S+"),
        None,
        "The name that the master has in the Sentinels' configuration (`sentinel monitor`); for `redisplus+sentinel://` URLs.",
        none="what the URL says",
    )
    sentinel_kwargs: Mapping[str, Any] | None = kinds.option(
        kinds.instance("dict", "a mapping", Mapping),
        None,
        "How to reach the Sentinels: `username`, `password`, `credential_provider`, `ssl`, `ssl_*`, `socket_timeout` (1 s). "
        "The credentials in the URL are the master's.",
        none="without a password, with TLS if the URL's scheme has it",
        secret=True,
    )
    min_other_sentinels: int = kinds.option(
        kinds.number(0, integer=True),
        0,
        "The number of other Sentinels that a Sentinel must know, so that its answer counts.",
        unit="Sentinels",
    )
    credential_provider: Any = kinds.option(  # noqa: RUF009 - immutable as all others; Any hides it
        kinds.instance("object or str", "a redis.CredentialProvider, a callable that makes one, or the path of either"),
        None,
        "The source of user name and password, instead of the URL.",
        none="the URL",
        secret=True,
    )
    credential_max_age: float | None = kinds.option(
        _SECONDS,
        None,
        "The time after which each connection logs in again with what `credential_provider` gives then.",
        unit="s",
        none="only when a streaming provider has new credentials",
    )
    ssl: bool | Mapping[str, Any] | None = kinds.option(
        kinds.one_of(kinds.flag(), kinds.instance("dict", "a mapping of redis-py's ssl_* arguments", Mapping)),
        None,
        "TLS for a URL without it: True (the server's certificate is checked), or redis-py's `ssl_*` "
        "arguments. Celery's `broker_use_ssl` overrides it.",
        none="as the URL says",
        secret=True,
    )
    event_log: bool | None = kinds.option(
        kinds.flag(),
        None,
        "Write the lifecycle events of messages in lasting queues to streams, for `message`, the Spark "
        "pipeline and other readers. True and False are stored with each declared queue, for all processes. A"
        " queue's `x-event-log` overrides it.",
        none="queues stay as they are; new ones have none",
    )
    error_traceback_bytes: int = kinds.option(
        kinds.number(0, 10_000, integer=True),
        0,
        "The bytes from the end of a failed task's traceback that are kept with its message and its dead "
        "letter. Tracebacks have source lines and possibly personal data, which every user of the broker's "
        "server can read.",
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
        "The number of events of a queue that are kept. Older ones are trimmed when every registered reader has them.",
        unit="events",
    )
    event_log_hard_maxlen: int = kinds.option(
        kinds.number(0, integer=True),
        1_000_000,
        "The number of events of a queue that are kept for slow readers. Beyond it the oldest are trimmed "
        "unread, counted and logged.",
        unit="events",
    )
    event_log_max_age: float = kinds.option(
        _SECONDS,
        604_800,
        "The time for which events are kept. Older ones are trimmed when every registered reader has them.",
        unit="s",
    )
    deadletter_queue: str | None = kinds.option(
        kinds.text("the name of a queue", r"(?s:.+)"),
        None,
        "The queue for messages that neither another queue nor an alternate exchange takes.",
        none="they become dead letters, see `ignore_unroutable_exchanges`",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
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
        those that mean nothing here (see `kombu_options`).

        Raises:
            OptionError: an option is unknown (the message has the nearest name), of the wrong type or out of
            range.
        """
        declared = {option.name: option for option in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in mapping.items():
            if name in declared:
                if value is not None or declared[name].metadata["none"]:
                    given[name] = value
            elif name not in IGNORED_OPTIONS and name not in KOMBU_OPTIONS:
                raise unknown(name, declared)
        return cls(**given)

    def stream_prefix(self, db: int) -> str:
        """Return what stands before an exchange's name in the key of its stream, as `fanout_prefix` says."""
        prefix = "/{db}." if self.fanout_prefix is True else self.fanout_prefix or ""
        return prefix.replace("{db}", str(db))


def table() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield (name, type, default, unit, allowed values, text) of every option, for the documentation."""
    for option in fields(Options):
        meta = option.metadata
        yield option.name, meta["type"], repr(option.default), meta["unit"], meta["allowed"], meta["doc"]
