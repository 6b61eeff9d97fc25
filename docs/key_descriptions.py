"""Describes every key on the server: type, content, lifetime. `docs/design/data.md` is made from it.

`keys.py` spells the keys; this file spells none. Times are ms since the epoch. Which scripts write a key say
their headers, see `script_headers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from field_descriptions import (
    CONSUMER_FIELDS,
    DELIVERY_FIELDS,
    EVENTS_META_FIELDS,
    FANOUT_FIELDS,
    LEADER_FIELDS,
    MESSAGE_FIELDS,
    QUEUE_FIELDS,
)

from celery_redis_plus.keys import Keys

_KEYS = Keys()
_Q = _KEYS.queue("Q")
_F = _KEYS.fanout("X", "/0.")
_TRACK, _TRACK_EVENTS = _KEYS.track("ID")
_BUCKET, _WINDOW, _PLACES = _KEYS.limiter("LIMITER")
_PROCESSES, _HEARTBEATS, _LEADER = _KEYS.processes

#: How long keys live; a sentence that several keys share.
WITH_QUEUE = "As long as it has members; in a transient queue it has the record's `ttl`."
WITH_MEMBERS = "As long as it has members."
WITH_MESSAGE = "As long as the message; in a transient queue it has the record's `ttl`."
WITH_EXCHANGE = "Until the last subscriber and binding are gone."
FREED = "Until they are freed."
FOREVER = "As long as the database."
#: Who ends a wake-up.
TAKEN = "the waiting client (BZMPOP)"


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """The description of one kind of key."""

    #: The key, with `Q` for a queue, `X` for an exchange, and other placeholders in capitals.
    key: bytes
    #: `string`, `hash`, `set`, `zset` or `stream`.
    type: str
    #: Members, scores, entries or the value, with units.
    content: str
    lives: str
    #: Names and meaning of the fields of a hash that has fixed ones.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: Whether it exists for a lasting queue that is declared and has never had a message or a consumer.
    of_empty_queue: bool = False
    #: Writers besides the scripts: Python, by a plain command.
    plain_writers: str = ""

    @property
    def pattern(self) -> str:
        """The key as the page shows it."""
        return self.key.decode()

    @property
    def kind(self) -> str:
        """The word by which the scripts' headers name it."""
        return self.pattern.partition(":{")[0].partition(":")[0] if self.key != _F.stream else "stream"

    @property
    def regex(self) -> re.Pattern[bytes]:
        """Matches each key of this kind under an empty prefix."""
        text = re.escape(self.key)
        for placeholder, wanted in _PLACEHOLDERS.items():
            text = text.replace(placeholder, wanted)
        return re.compile(text, re.DOTALL)


_PLACEHOLDERS = {
    re.escape(b"{/0.X}"): rb"\{.*\}",
    re.escape(_F.stream): rb"/[^{}]*\..*",
    re.escape(b"{Q}"): rb"\{.*\}",
    re.escape(b"{X}"): rb"\{.*\}",
    re.escape(b"{ID}"): rb"\{.*\}",
    **dict.fromkeys((b"TAG", b"CONSUMER", b"PRODUCER", b"NUMBER", b"PUBLISHER", b"PROCESS"), rb"[^:]*"),
    **dict.fromkeys((b"TEXT", b"TASK", b"NAME"), rb".*"),
}

OF_A_QUEUE = (
    KeyDescription(
        _Q.meta,
        "hash",
        "The queue's record: arguments, state, counters.",
        "Until the queue is deleted; a transient one has a TTL.",
        QUEUE_FIELDS,
        of_empty_queue=True,
        plain_writers="the sweeper (a stopped sweep)",
    ),
    KeyDescription(
        _Q.ready,
        "zset",
        "Ready messages: tag -> rank x 10^13 + when it became ready. The lowest score is next.",
        WITH_QUEUE,
    ),
    KeyDescription(_Q.delayed, "zset", "Delayed messages: tag -> when it is due.", WITH_QUEUE),
    KeyDescription(_Q.index, "zset", "Unacked messages: tag -> end of its lease.", WITH_QUEUE),
    KeyDescription(
        _Q.held,
        "zset",
        "Ready messages that [message groups](../message-groups.md) or [limiters](../limiters.md) hold back, with their scores.",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.groups,
        "zset",
        "By group, score 0: group, NUL, and `h`, place and tag (held), `r` and tag (ready or unacked), or `u` and tag (unacked, "
        "fair).",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.group_times,
        "zset",
        "Working time of each group of a fair queue, ms; '' is all.",
        "Five minutes from its first entry.",
    ),
    KeyDescription(
        _Q.limited,
        "zset",
        "Messages that wait for [limiters](../limiters.md), score 0: limiter and key, NUL, place and tag.",
        WITH_QUEUE,
    ),
    KeyDescription(_Q.limited_until, "zset", "The next look at each of these limiters.", WITH_QUEUE),
    KeyDescription(_Q.expiry, "zset", "Ready messages that expire: tag -> when.", WITH_QUEUE),
    KeyDescription(
        _Q.dlx_outbox,
        "zset",
        "Dead letters for their exchange: tag -> time of death.",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.dead,
        "zset",
        "Stored dead letters: tag -> time of death.",
        "Within `dead_letter_max` and `dead_letter_ttl`.",
    ),
    KeyDescription(
        _Q.trash,
        "zset",
        "Numbers of the sets of purged or deleted messages.",
        FREED,
    ),
    KeyDescription(_Q.trash_set(b"NUMBER"), "zset", "One of these sets: tag -> former score.", FREED),
    KeyDescription(
        _Q.message + b"TAG",
        "hash",
        "One message.",
        WITH_MESSAGE,
        MESSAGE_FIELDS,
        plain_writers="the publisher, for a body over 1 MB (`staged.…`)",
    ),
    KeyDescription(
        _Q.wakeup,
        "zset",
        "Wake-up of one waiting consumer: a member `work`.",
        WITH_QUEUE,
        plain_writers=TAKEN,
    ),
    KeyDescription(
        _Q.wakeup_of("CONSUMER"),
        "zset",
        "The same for the consumers of a priority, or for one: a member `work` or `active`.",
        "Until the consumer takes it, or leaves; in a transient queue it has the record's `ttl`.",
        plain_writers=TAKEN,
    ),
    KeyDescription(
        _Q.schedule_wakeup,
        "zset",
        "Wake-up of the sweeper: a member `due`.",
        WITH_QUEUE,
        plain_writers=TAKEN,
    ),
    KeyDescription(
        _Q.consumers,
        "zset",
        "The queue's consumers: id -> when it joined.",
        "Without a record for a minute.",
    ),
    KeyDescription(
        _Q.consumer + b"CONSUMER",
        "hash",
        "The record of one consumer.",
        "Until the consumer leaves or is lost; in a transient queue it has the record's `ttl`.",
        CONSUMER_FIELDS,
    ),
    KeyDescription(
        _Q.with_credit,
        "zset",
        "Consumers with credit: id -> priority. Only [restricted queues](../glossary.md) have it.",
        "Until the queue has no rules; in a transient queue it has the record's `ttl`.",
    ),
    KeyDescription(
        _Q.waiting_publishers,
        "zset",
        "Publishers that wait for room: publisher -> its ticket.",
        "60 s after the last question.",
    ),
    KeyDescription(
        _Q.waiting_publishers + b":seen",
        "zset",
        "Their last questions; after 5 s a publisher counts as gone.",
        "As the key before.",
    ),
    KeyDescription(
        _Q.waiting_publishers + b":PUBLISHER",
        "zset",
        "Wake-up of one waiting publisher: a member `capacity`.",
        "5 s, or until it takes it.",
        plain_writers=TAKEN,
    ),
    KeyDescription(
        _Q.producer + b"PRODUCER",
        "string",
        "Number of the last stored message of this producer (a connection), behind `F` once it is fenced.",
        "`publish_dedup_window` after the last publish.",
    ),
    KeyDescription(_Q.producer + b"PRODUCER:NUMBER", "string", "1: a retry has stored this message.", "`publish_dedup_window`."),
    KeyDescription(
        _Q.dedup + b"TEXT",
        "string",
        "Tag and task id of the message with this `x-deduplication-id`.",
        "`x-deduplication-ttl`, or a week after the due time.",
    ),
    KeyDescription(
        _Q.migrated,
        "zset",
        "Messages that `migrate --from` has stored: id at kombu's server -> when.",
        "An hour after the migration, a week after a kill.",
        plain_writers="`migrate --from`, at its end",
    ),
    KeyDescription(
        _Q.leaving,
        "list",
        "Messages on their way to another server: id, step of kombu's list, message.",
        "Until the command has ended, or is run again.",
        plain_writers="`migrate --reverse --to`",
    ),
    KeyDescription(
        _Q.moved_in,
        "zset",
        "Moves from other shards -> when each was finished.",
        "Ten minutes after the last one.",
    ),
    KeyDescription(
        _Q.leaving_shard,
        "hash",
        "Messages on their way to another shard -> former set and score.",
        "Until the command has ended, or is run again.",
        plain_writers="`shards raise`",
    ),
    KeyDescription(
        _Q.leaving_message + b"TAG",
        "hash",
        "Such a message, with the fields of `message:{Q}:TAG`.",
        "As its place in `leaving_shard:{Q}`.",
        plain_writers="`shards raise`",
    ),
    KeyDescription(
        _Q.events,
        "stream",
        "Lifecycle events; [the columns](../events.md#columns).",
        "Until the last one is too old.",
    ),
    KeyDescription(
        _Q.events_meta,
        "hash",
        "The state of the event log.",
        "`event_log_max_age` longer than the events.",
        EVENTS_META_FIELDS,
        plain_writers="the command that repairs",
    ),
    KeyDescription(
        _Q.events_readers,
        "hash",
        "Reader -> its last committed event (`EPOCH-N`), when, how many it lost, its owner.",
        "As `events_meta`.",
        plain_writers="`events drop-reader`",
    ),
    KeyDescription(
        _Q.event_index + b"TAG",
        "string",
        "Ids of a message's events, a space behind each.",
        "`event_log_max_age` after the last event.",
    ),
    KeyDescription(
        _Q.task_index + b"TASK",
        "string",
        "Tags of a task's messages, likewise.",
        "`event_log_max_age` after the last one.",
    ),
)

OF_AN_EXCHANGE = (
    KeyDescription(
        _KEYS.binding("X"),
        "hash",
        "Binding -> ''; `version`: their last change.",
        "Until the last binding is removed, or the exchange is deleted.",
    ),
    KeyDescription(
        _F.stream,
        "stream",
        "Broadcasts: `head` (number, producer.number, routing key) and `payload`.",
        "Without subscribers `stream_max_age`, in an auto-delete exchange `subscriber_timeout`.",
    ),
    KeyDescription(
        _F.meta,
        "hash",
        "Counters of a fanout exchange.",
        "Until the exchange is deleted; of an auto-delete one `subscriber_timeout` without subscribers.",
        FANOUT_FIELDS,
    ),
    KeyDescription(_F.subscribers, "zset", "Live subscribers: id -> when it is overdue.", WITH_EXCHANGE),
    KeyDescription(_F.cursors, "zset", "Subscriber -> number of its last processed broadcast.", WITH_EXCHANGE),
    KeyDescription(
        _F.records,
        "hash",
        "Subscriber -> cursor, its number, since, timeout, state, label, counts.",
        WITH_EXCHANGE,
    ),
    KeyDescription(
        _F.dead,
        "zset",
        "Recent deaths of subscribers -> time.",
        "As long as deaths are remembered.",
    ),
    KeyDescription(
        _F.waiting_publishers,
        "zset",
        "As for a queue, with the other two keys.",
        "60 s after the last of them asked.",
    ),
    KeyDescription(
        _F.producer + b"PRODUCER",
        "string",
        "As for a queue.",
        "`publish_dedup_window` after the last one.",
    ),
    KeyDescription(
        _F.producer + b"PRODUCER:NUMBER",
        "string",
        "As for a queue.",
        "`publish_dedup_window`.",
    ),
)

OF_THE_DATABASE = (
    KeyDescription(
        _KEYS.queues,
        "zset",
        "All queues: +inf (lasting), the end (transient), or negative (gone: a tombstone).",
        FOREVER,
        of_empty_queue=True,
    ),
    KeyDescription(_KEYS.queue_ids, "string", "The last queue id.", FOREVER, of_empty_queue=True),
    KeyDescription(
        _KEYS.exchanges, "hash", "Exchange -> its record (JSON: type, arguments).", "Until the last exchange is deleted."
    ),
    KeyDescription(
        _KEYS.policies,
        "hash",
        "Pattern -> its policy (JSON, see `broker/queues/policies.py`); '' -> the version.",
        "From the first policy on.",
    ),
    KeyDescription(
        _KEYS.limiter_rules,
        "hash",
        "Limiter, with or without key -> a hold (from, until), its rule.",
        "Until removed.",
    ),
    KeyDescription(_KEYS.limiters, "zset", "Limiters with their keys -> since when they are used.", "The last 10,000."),
    KeyDescription(
        _KEYS.limiter_queues,
        "zset",
        "Queues whose messages wait for a limiter, score 0: limiter and key, NUL, queue.",
        WITH_MEMBERS,
    ),
    KeyDescription(
        _BUCKET, "string", "The tokens of a bucket, and when it had them (ms).", "A minute longer than it is not full."
    ),
    KeyDescription(_WINDOW, "zset", "What was let through in a sliding window -> when, ms.", "A minute longer than the window."),
    KeyDescription(_PLACES, "zset", "Messages that have a place of a concurrency limiter -> since when, ms.", WITH_MEMBERS),
    KeyDescription(
        _KEYS.database_id,
        "string",
        "Version of the data format, random id, number of shards, with dots between.",
        FOREVER,
        of_empty_queue=True,
    ),
    KeyDescription(
        _KEYS.shards_raise,
        "hash",
        "In the first shard: the new number, its command, until when.",
        "Until the raise is done.",
    ),
    KeyDescription(
        _KEYS.always_swept,
        "set",
        "Queues that any process sweeps.",
        WITH_MEMBERS,
    ),
    KeyDescription(_KEYS.sweep_wakeup, "zset", "Wake-up: a new member of that set.", "Seconds.", plain_writers=TAKEN),
    KeyDescription(
        _PROCESSES,
        "hash",
        "Consuming process -> its record (JSON, see `broker/consumers/processes.py`), behind `lost ` during its recovery; "
        "`version`.",
        "Until the last process has stopped; a day after the last report.",
    ),
    KeyDescription(
        _HEARTBEATS,
        "zset",
        "Process -> when its next heartbeat is due.",
        "As `processes`.",
    ),
    KeyDescription(_LEADER, "hash", "The process that is the leader.", "A day after the last heartbeat.", LEADER_FIELDS),
    KeyDescription(_KEYS.event_logs, "set", "Queues that have lifecycle events.", FOREVER),
    KeyDescription(
        _KEYS.audit,
        "stream",
        "Actions of operators: `actor`, `via`, `from`, `action`, `queue`, `count`, `outcome`, `details` (JSON), `begun`.",
        "The last 10,000, some 2 MB.",
        plain_writers="who acts",
    ),
    KeyDescription(
        _KEYS.tracks,
        "zset",
        "Unresolved tracked deliveries -> their deadline.",
        WITH_MEMBERS,
        plain_writers="the publisher; the process that resolves it",
    ),
    KeyDescription(
        _TRACK, "hash", "One tracked delivery.", "The ack timeout, and as long as its state is kept.", DELIVERY_FIELDS
    ),
    KeyDescription(_TRACK_EVENTS, "stream", "The answers in their order: `recipient`, `outcome`.", "As the delivery."),
    KeyDescription(
        _KEYS.client_wakeup("ID"),
        "zset",
        "Wake-up of one blocked client.",
        "Seconds, or until it takes it.",
        plain_writers="the waiting client (BZMPOP, DEL)",
    ),
)

#: The kind that only scripts of fanout exchanges name, and the one that queues and such exchanges share.
FANOUT, PRODUCER = _F.meta.partition(b":")[0].decode(), _Q.producer.partition(b":")[0].decode()

SECTIONS = {
    "Keys of a queue": OF_A_QUEUE,
    "Keys of an exchange": OF_AN_EXCHANGE,
    "Keys of the database": OF_THE_DATABASE,
}
DESCRIPTIONS = tuple(description for section in SECTIONS.values() for description in section)


def describe(key: bytes) -> KeyDescription | None:
    """Return the description of a key found on the server, None for one that is not ours; the prefix has to be taken off."""
    return next((one for one in DESCRIPTIONS if one.regex.fullmatch(key)), None)
