"""Every transport option once: name, type, default, unit, and below it what it does.

`Options` validates by this declaration, and the page of the documentation is made of it (`docs/option_texts.py`).
Durations are seconds, as everywhere in Celery's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_redis_plus.errors import OptionError
from celery_redis_plus.kombu_options import IGNORED_OPTIONS, KOMBU_OPTIONS, unknown
from celery_redis_plus.option_types import (
    checked,
    choice,
    flag,
    instance,
    names,
    nothing,
    number,
    number_mapping,
    one_of,
    option,
    text,
    whole_number,
)

_SECONDS = number(1)
_TIMEOUT = number(0.01)
#: Those of `events.TRANSITIONS`, in its order, which a publisher without event logs does without.
_EVENTS = (
    *("published", "delayed", "promoted", "claimed", "recovered", "requeued", "retried", "acked", "failed", "rejected"),
    *("expired", "dead_lettered", "replayed", "moved", "cancelled", "purged", "dropped", "vanished"),
)
#: A pattern of any text that has a character.
_NOT_EMPTY = r"(?s:.+)"


@dataclass(frozen=True, slots=True)
class Options:
    """The transport options of one connection, validated.

    `Options.from_mapping(transport_options)` is for what a user wrote. `Options(polling_interval=1)` checks
    values as strictly, but knows nothing of the other names that stand in the same dict.

    Raises:
        OptionError: an option is unknown, of the wrong type or out of range.
    """

    visibility_timeout: float = option(number(3), 300, unit="s")
    """How long a claimed message belongs to a worker without a heartbeat. A live worker sends one every sixth of this time, at
    least every 5 s, so tasks may run far longer."""
    polling_interval: float = option(number(0.05, 3600), 10, unit="s")
    """The longest wait of an idle consumer for a wake-up before it checks its queues."""
    fetch_batch_size: int | None = option(
        whole_number(1, 500), None, unit="messages", none="as many as the prefetch leaves room for, at most 100 without one"
    )
    """The most messages of one claim."""
    overfetch_factor: float = option(number(1, 100), 1, unit="ratio")
    """The messages that a process may claim, as a multiple of its prefetch. Other consumers cannot get them."""
    min_fetch_interval: float = option(number(0, 3600), 0, unit="s")
    """The least time between two claims of a connection. Batches are larger and later."""
    graceful_timeout: float | None = option(number(0), None, unit="s", none="Celery's own rules: as long as they take")
    """The time that a [worker that stops](lifecycle.md#graceful-shutdown-stop-or-drain-a-worker-with-sigterm) gives its tasks."""
    global_keyprefix: str = option(text(), "")
    """Prefix of every key, the namespace where applications share a database. End it with a colon (`shop:`): the keys of `shop`
    could meet those of `shopdead_`."""
    on_mismatch: str = option(choice("keep", "apply", "error"), "keep")
    """What a declaration does if the queue has other arguments that only steer it ([the three
    values](policies.md#deploying-changed-arguments))."""
    priority_order: str | None = option(choice("high-first", "low-first"), None, none="high-first")
    """Which priority is delivered first: `high-first` (255 first, as in RabbitMQ) or `low-first` (0 first, as in kombu's own
    Redis transport)."""
    consumer_heartbeat_timeout: float = option(_SECONDS, 60, unit="s")
    """The time without heartbeats after which the consumers of a frozen or cut-off process [count as
    dead](consumers.md#crashed-consumers)."""
    consumer_priority: int = option(whole_number(-1_000_000, 1_000_000), 0)
    """The [priority](consumers.md#consumer-priorities) of consumers without `x-priority`. `celery worker --consumer-priority`
    sets it for one worker."""
    connection_lost_grace: float = option(number(0, 3600), 5, unit="s")
    """The time without any connection after which a consuming process [is
    lost](operating.md#crashed-workers-oom-killer-workerlosterror). 0 leaves that to the visibility timeout."""
    queue_order_strategy: str = option(choice("round_robin", "sorted", "priority"), "round_robin")
    """The order in which a consumer of several queues claims from them: in turn, by name, or the first declared first."""
    fanout_prefix: bool | str = option(
        one_of(flag(), text("a text in which {db} is the database number", _NOT_EMPTY)), True
    )  # fmt: skip
    """Prefix of fanout streams: True for `/{db}.`, False for none, or another text."""
    fanout_patterns: bool = option(flag(), True)
    """Filter fanout messages by routing key, with the wildcards of a topic exchange."""
    stream_maxlen: int = option(whole_number(1), 10_000, unit="messages")
    """The approximate number of messages that a fanout stream keeps. What a slower subscriber misses is counted and logged."""
    stream_max_age: float | None = option(_SECONDS, 86_400, unit="s", none="any age, within stream_maxlen")
    """The longest time that a fanout stream keeps a message; those that all subscribers have processed go earlier."""
    subscriber_timeout: float = option(_SECONDS, 300, unit="s")
    """A fanout subscriber without a heartbeat for this time and another 30 s is removed. Before that it resumes at its position;
    after it, unread messages are counted and logged."""
    transient_queue_ttl: float = option(_SECONDS, 300, unit="s")
    """An auto-delete queue without consumers is removed with its messages after this time."""
    delivery_limit: int | None = option(whole_number(1), 20, unit="deliveries", none="no limit")
    """The [failed deliveries](dead-letters.md#the-delivery-limit) that make a message a dead letter. `x-delivery-limit` overrides
    it."""
    dead_letter_max: int = option(whole_number(0), 10_000, unit="messages")
    """The number of dead letters that a queue keeps; the oldest beyond are removed, counted and logged."""
    dead_letter_ttl: float = option(_SECONDS, 604_800, unit="s")
    """How long a queue keeps a dead letter; older ones are removed, counted and logged."""
    publish_dedup_window: float = option(_SECONDS, 900, unit="s")
    """How long a publish whose reply was lost can be retried without a second message: longer than your retry policy."""
    wait_replicas: int = option(whole_number(0), 0, unit="replicas")
    """The replicas that must confirm each publish (the server's WAIT), else [`NotReplicated`](errors.md#notreplicated). Exchanges
    of `ignore_unroutable_exchanges` do not need them."""
    wait_replicas_timeout: float = option(_TIMEOUT, 1, unit="s")
    """How long a publish waits for its replicas; most wait for a twentieth of that while some are missing."""
    ignore_unroutable_exchanges: str = option(
        text("names of exchanges, separated by commas, with * and ?"), "celeryev,*.pidbox,reply*"
    )  # fmt: skip
    """Exchanges where an [unroutable message](operating.md#unroutable-messages) is only counted. `celeryev` also stands for
    Celery's setting `event_exchange`."""
    publish_timeout: float = option(number(0), 30, unit="s")
    """The longest wait of a publish to a full queue with `x-overflow: block`, and the longest sleep by `x-throttle`."""
    throttle_threshold: float = option(number(0, 1), 0.5, unit="ratio")
    """The share of free room below which publishers into a queue with `x-throttle: true` slow down."""
    accept: Mapping[str, Any] | None = option(
        instance("dict", "a mapping of queue names to what they accept", Mapping), None, none="what x-accept-types says"
    )
    """What queues accept, checked in Python at publish: a callable, a pydantic model, a msgspec Struct, a dataclass, or a list of
    these. `configure_app(accept=…)` sets it."""
    message_ttl: None = option(
        nothing(
            "only None. A number would silently delete tasks that wait or have a long ETA. To let messages expire, give the "
            "queue the argument x-message-ttl, or the task expires="
        ),
        None,
    )
    """A value other than None raises an error."""
    socket_timeout: float | None = option(_TIMEOUT, 5, unit="s", none="no limit")
    """The longest wait for a reply; then the connection is closed and opened again."""
    socket_connect_timeout: float | None = option(_TIMEOUT, 5, unit="s", none="as socket_timeout")
    """The longest wait for a connection, and for each reply during its set-up."""
    socket_keepalive: bool | None = option(flag(), None, none="on")
    """TCP keepalive, which detects a vanished peer."""
    socket_keepalive_options: Mapping[int, int] | None = option(
        number_mapping(), None, none="idle 30 s, interval 5 s, 3 probes, where the platform has them"
    )
    """TCP options by number, e.g. `{socket.TCP_KEEPIDLE: 60}`."""
    health_check_interval: float = option(number(0), 25, unit="s")
    """A connection that was silent for so long is checked by a PING before its next use; 0: never."""
    client_name: str | None = option(
        text("printable ASCII without spaces", r"[!-~]+"), None, none="celery-redis-plus: and the connection's purpose"
    )
    """The name of all connections in CLIENT LIST."""
    master_name: str | None = option(text("the name of a master", r"\S+"), None, none="what the URL says")
    """The name of the master in the Sentinels' configuration (`sentinel monitor`)."""
    sentinel_kwargs: Mapping[str, Any] | None = option(
        instance("dict", "a mapping", Mapping), None, none="without a password, with TLS if the URL's scheme has it", secret=True
    )
    """How to reach the Sentinels: `username`, `password`, `credential_provider`, `ssl`, `ssl_*`, `socket_timeout` (1 s). The
    credentials in the URL are the master's."""
    shards: int = option(whole_number(1, 64), 1, unit="shards")
    """Over how many [shards](shards.md) the queues are spread. The same for all processes."""
    min_other_sentinels: int = option(whole_number(0), 0, unit="Sentinels")
    """How many other Sentinels a Sentinel must know for its answer to count."""
    credential_provider: Any = option(  # noqa: RUF009 - immutable as all others; Any hides it
        instance("object or str", "a redis.CredentialProvider, a callable that makes one, or the path of either"),
        None,
        none="the URL",
        secret=True,
    )
    """The source of user name and password, instead of the URL."""
    credential_max_age: float | None = option(
        _SECONDS, None, unit="s", none="only when a streaming provider has new credentials"
    )  # fmt: skip
    """The time after which each connection logs in again by `credential_provider`."""
    ssl: bool | Mapping[str, Any] | None = option(
        one_of(flag(), instance("dict", "a mapping of redis-py's ssl_* arguments", Mapping)),
        None,
        none="as the URL says",
        secret=True,
    )
    """TLS: True, or redis-py's `ssl_*` arguments. Those in the URL, and in Celery's `broker_use_ssl`, go first."""
    event_log: bool | None = option(flag(), None, none="queues stay as they are; new ones have none")
    """Write [lifecycle events](lifecycle.md) of messages in lasting queues. Each declared queue stores the setting, for all
    processes. `x-event-log` overrides it."""
    metrics_port: int | None = option(whole_number(0, 65_535), None, none="no metrics are served")
    """The port on which a Celery worker serves [its metrics](metrics.md#in-a-worker); 0: a free one, which the log names."""
    metrics_host: str = option(text("an address of this machine, such as 0.0.0.0 for all", r"\S+"), "127.0.0.1")
    """The address on which a worker listens for `metrics_port`."""
    take_from_kombu: bool = option(flag(), False)
    """While a fleet is [migrated](migration.md): a Celery worker moves what is published to kombu's lists into its queues."""
    error_traceback_bytes: int = option(whole_number(0, 10_000), 0, unit="bytes")
    """The bytes from the end of a failed task's traceback that [its message and dead letter
    keep](dead-letters.md#the-exception-and-its-traceback)."""
    release: str | None = option(text("a text of up to 100 characters", r"(?s:.{1,100})"), None, none="dead letters have none")
    """The release of the application, such as a commit. `consumers` shows it for each consumer, and dead letters [can be
    selected](retries.md#dead-letters-by-exception) by it."""
    event_log_sample: float = option(number(0.001, 1), 1)
    """The share of messages whose events are written, each with all of them."""
    event_log_events: tuple[str, ...] | None = option(names(*_EVENTS), None, none="all")
    """The events that are written, by name."""
    event_log_payload: bool = option(flag(), False)
    """Write the messages' envelopes and bodies (up to 1 MB) into their event `published`."""
    event_log_index: bool = option(flag(), False)
    """Keep an index, by which `message` finds finished messages, and those of a task id, at once. About 300 bytes a message, for
    `event_log_max_age`."""
    event_log_maxlen: int = option(whole_number(0), 100_000, unit="events")
    """The events of a queue that are kept. Older ones are trimmed when every registered reader has them."""
    event_log_hard_maxlen: int = option(whole_number(0), 1_000_000, unit="events")
    """The events of a queue that are kept for slow readers. Older ones are trimmed unread, counted and logged."""
    event_log_max_age: float = option(_SECONDS, 604_800, unit="s")
    """How long events are kept. Older ones are trimmed when every registered reader has them."""
    deadletter_queue: str | None = option(
        text("the name of a queue", _NOT_EMPTY), None, none="they become dead letters, see `ignore_unroutable_exchanges`"
    )
    """The queue for messages that neither another queue nor an alternate exchange takes."""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, checked(one, getattr(self, one.name)))
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
        declared = {one.name: one for one in fields(cls)}
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
