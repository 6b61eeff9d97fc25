"""Describes every key on the server: type, content, lifetime. `docs/data.md` is made from it.

`keys.py` spells the keys; this file spells none. Which scripts write a key say their headers, see `script_headers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_redis_plus.events import META_FIELDS as EVENTS_META_FIELDS
from celery_redis_plus.keys import Keys
from celery_redis_plus.record_fields import (
    CONSUMER_FIELDS,
    DELIVERY_FIELDS,
    FANOUT_FIELDS,
    LEADER_FIELDS,
    MESSAGE_FIELDS,
    QUEUE_FIELDS,
)

_KEYS = Keys()
_Q = _KEYS.queue("Q")
_F = _KEYS.fanout("X", "/0.")
_TRACK, _TRACK_EVENTS = _KEYS.track("ID")
_BUCKET, _WINDOW, _PLACES = _KEYS.limiter("LIMITER")
_PROCESSES, _HEARTBEATS, _LEADER = _KEYS.processes

#: How long keys live; a sentence that several keys share.
WITH_QUEUE = "As long as it has members; in a transient queue it has the record's `ttl`."
WITH_MESSAGE = "As long as the message; its TTL is the record's `ttl`, where the queue is transient."
WITH_EXCHANGE = "Until the exchange's last subscriber and binding are gone."
FREED = "Until the sweep, or the caller of the purge, has freed them."
FOREVER = "As long as the database."
#: Readers of a wake-up.
TAKEN_BY_THREAD = "the maintenance thread, which takes the member (BZMPOP)"
TAKEN_BY_CONSUMER = "the waiting consumer, which takes the member (BZMPOP)"


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
        "Until the queue is deleted. A transient queue's record has a TTL, which its consumers renew.",
        QUEUE_FIELDS,
        of_empty_queue=True,
        plain_writers="the process that sweeps (`sweeper`, a stopped sweep)",
    ),
    KeyDescription(
        _Q.ready,
        "zset",
        "Ready messages: tag -> rank x 10^13 + time at which it became ready, ms since the epoch. The lowest score is next.",
        WITH_QUEUE,
    ),
    KeyDescription(_Q.delayed, "zset", "Delayed messages: tag -> when it is due, ms since the epoch.", WITH_QUEUE),
    KeyDescription(
        _Q.index, "zset", "Unacked messages: tag -> end of its lease (visibility timeout), ms since the epoch.", WITH_QUEUE
    ),
    KeyDescription(
        _Q.held,
        "zset",
        "Ready messages that their [message groups](message-groups.md) or [limiters](limiters.md) hold back: "
        "tag -> rank x 10^13 + time, as in the queue.",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.groups,
        "zset",
        "The messages of each group, with the score 0: group, NUL, and `h`, place and tag of a held one. `r` and tag: ready or "
        "unacked. `u` and tag: unacked, in a fair queue.",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.group_times,
        "zset",
        "Of a fair queue: for how long messages of each group were in work, ms; '' is all of them.",
        "Five minutes from its first entry; then it begins anew.",
    ),
    KeyDescription(
        _Q.limited,
        "zset",
        "Messages that wait for their [limiters](limiters.md), in the order in which they have their turn, with the score 0: "
        "limiter and key, NUL, place and tag. They are in `held`, too.",
        WITH_QUEUE,
    ),
    KeyDescription(_Q.limited_until, "zset", "When each of these limiters is looked at again, ms since the epoch.", WITH_QUEUE),
    KeyDescription(_Q.expiry, "zset", "Ready messages that expire: tag -> when, ms since the epoch.", WITH_QUEUE),
    KeyDescription(
        _Q.dlx_outbox,
        "zset",
        "Dead letters on their way to the dead-letter exchange: tag -> time of death, ms since the epoch.",
        WITH_QUEUE,
    ),
    KeyDescription(
        _Q.dead,
        "zset",
        "The queue's own dead letters: tag -> time of death, ms since the epoch.",
        "As long as it has members; these go by `dead_letter_max` and `dead_letter_ttl`. A transient queue has none.",
    ),
    KeyDescription(
        _Q.trash,
        "zset",
        "The sets of messages that a purge or a delete has removed and that are not freed yet: number -> the same number.",
        FREED,
    ),
    KeyDescription(_Q.trash_set(b"NUMBER"), "zset", "One of these sets, renamed: tag -> former score.", FREED),
    KeyDescription(
        _Q.message + b"TAG",
        "hash",
        "One message.",
        WITH_MESSAGE,
        MESSAGE_FIELDS,
        plain_writers="the publisher, for a body over 1 MB (`staged.…`, then renamed by the script)",
    ),
    KeyDescription(
        _Q.wakeup,
        "zset",
        "Wake-up of one waiting consumer: a member `work`; consumers wait by BZMPOP. It holds no message.",
        WITH_QUEUE,
        plain_writers=TAKEN_BY_CONSUMER,
    ),
    KeyDescription(
        _Q.wakeup_of("CONSUMER"),
        "zset",
        "The same for some of the consumers: those of a priority, or one (its id): a member `work` or `active`.",
        "Until the consumer takes it, or leaves; in a transient queue it has the record's `ttl`.",
        plain_writers=TAKEN_BY_CONSUMER,
    ),
    KeyDescription(
        _Q.schedule_wakeup,
        "zset",
        "Wake-up of the sweeper: a member `due`, where something is due before its next pass; of a deleted queue each consumer.",
        WITH_QUEUE,
        plain_writers=TAKEN_BY_THREAD,
    ),
    KeyDescription(
        _Q.consumers,
        "zset",
        "The queue's consumers: id -> when it joined, ms since the epoch.",
        "As long as it has members; in a transient queue as long as the queue, in one without a record for a minute.",
    ),
    KeyDescription(
        _Q.consumer + b"CONSUMER",
        "hash",
        "The record of one consumer.",
        "Until the consumer leaves, or its process is lost or silent; in a transient queue it has the record's `ttl`.",
        CONSUMER_FIELDS,
    ),
    KeyDescription(
        _Q.with_credit,
        "zset",
        "Consumers with credit: id -> priority; and '' at -inf. It exists exactly while the queue has rules for its "
        "consumers (pause, single active consumer, priorities, rate, owner): a claim of a plain queue checks for it.",
        "Until the queue has no such rules; in a transient queue it has the record's `ttl`.",
    ),
    KeyDescription(
        _Q.waiting_publishers,
        "zset",
        "Publishers that wait for capacity of a queue with limits: publisher -> its ticket.",
        "60 s after the last of them asked.",
    ),
    KeyDescription(
        _Q.waiting_publishers + b":seen",
        "zset",
        "When each of them asked last, ms since the epoch; after 5 s it counts as gone.",
        "As the key before.",
    ),
    KeyDescription(
        _Q.waiting_publishers + b":PUBLISHER",
        "zset",
        "Wake-up of one waiting publisher: a member `capacity`.",
        "5 s, or until it takes it.",
        plain_writers="the waiting publisher, which takes the member (BZMPOP)",
    ),
    KeyDescription(
        _Q.producer + b"PRODUCER",
        "string",
        "Number of the last message of this producer (one server connection) that is stored; "
        "with `F` before it once a retry has fenced later originals.",
        "`publish_dedup_window` after the last publish; not longer than a transient queue.",
    ),
    KeyDescription(_Q.producer + b"PRODUCER:NUMBER", "string", "1: a retry has stored this message.", "`publish_dedup_window`."),
    KeyDescription(
        _Q.dedup + b"TEXT",
        "string",
        "Tag and task id of the stored message with an `x-deduplication-id`; if it was moved, also its queue.",
        "`x-deduplication-ttl`; of a task with `unique` or `debounce` a week after it is due.",
    ),
    KeyDescription(
        _Q.migrated,
        "zset",
        "Messages that `migrate --from` has stored: id at kombu's server -> when, ms since the epoch.",
        "An hour after the migration's end; a week where it was killed.",
        plain_writers="`migrate --from`, at its end",
    ),
    KeyDescription(
        _Q.leaving,
        "list",
        "Messages that `migrate --reverse --to` has taken from the queue, and not yet stored on the other server: id, step of "
        "kombu's list, and message.",
        "As long as it has members: until the command has ended, or is run again.",
        plain_writers="`migrate --reverse --to`",
    ),
    KeyDescription(
        _Q.moved_in,
        "zset",
        "With `shards`: moves of messages from other shards -> when each was finished, ms since the epoch.",
        "Ten minutes after the last one.",
    ),
    KeyDescription(
        _Q.leaving_shard,
        "hash",
        "Messages that `shards raise` has taken from the queue, and not yet stored in its new shard -> the set that each was in, "
        "and its score there.",
        "As long as it has members: until the command has ended, or is run again.",
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
        "Lifecycle events; [the columns](events.md#columns).",
        "Until trimmed; where no more are written, until the last one is too old.",
    ),
    KeyDescription(
        _Q.events_meta,
        "hash",
        "The state of the event log.",
        "Where none are written any more, `event_log_max_age` longer than the events.",
        EVENTS_META_FIELDS,
        plain_writers="the command that repairs",
    ),
    KeyDescription(
        _Q.events_readers,
        "hash",
        "Reader -> `EPOCH-N`, the last event that it has committed, when (ms since the epoch), how many it lost, whose it is.",
        "Until the reader is removed; where no events are written any more, `event_log_max_age` longer than these.",
        plain_writers="`events drop-reader`",
    ),
    KeyDescription(
        _Q.event_index + b"TAG",
        "string",
        "Ids of a message's events, each with a space behind it (`event_log_index`).",
        "`event_log_max_age` after the last event.",
    ),
    KeyDescription(
        _Q.task_index + b"TASK",
        "string",
        "Tags of a task's messages, each with a space behind it (`event_log_index`).",
        "`event_log_max_age` after the last one.",
    ),
)

OF_AN_EXCHANGE = (
    KeyDescription(
        _KEYS.binding("X"),
        "hash",
        "The exchange's bindings: binding -> ''; `version`: when they changed last, ms since the epoch.",
        "Until the last binding is removed, or the exchange is deleted.",
    ),
    KeyDescription(
        _F.stream,
        "stream",
        "Broadcasts: `head` (number, producer.number, routing key) and `payload`.",
        "Trimmed to what a subscriber still needs, within `stream_maxlen` and `stream_max_age`. Without subscribers the key goes "
        "after `stream_max_age`, and that of an auto-delete exchange after `subscriber_timeout`.",
    ),
    KeyDescription(
        _F.meta,
        "hash",
        "Counters of a fanout exchange.",
        "Until the exchange is deleted; of an auto-delete exchange, `subscriber_timeout` without subscribers.",
        FANOUT_FIELDS,
    ),
    KeyDescription(_F.subscribers, "zset", "Live subscribers: id -> when it is overdue, ms since the epoch.", WITH_EXCHANGE),
    KeyDescription(_F.cursors, "zset", "Subscriber -> number of the last broadcast that it has processed.", WITH_EXCHANGE),
    KeyDescription(
        _F.records,
        "hash",
        "Subscriber -> its record: cursor (stream id), its number, since (ms), timeout (ms), state, label, and delivered, acked, "
        "rejected, dead-lettered and lost broadcasts and delivered bytes.",
        WITH_EXCHANGE,
    ),
    KeyDescription(
        _F.dead,
        "zset",
        "Recent deaths of subscribers -> time, ms since the epoch.",
        "As long as deaths are remembered, or with the exchange.",
    ),
    KeyDescription(
        _F.waiting_publishers,
        "zset",
        "As for a queue: publishers that wait for capacity of an exchange with limits; beside it the other two keys.",
        "60 s after the last of them asked.",
    ),
    KeyDescription(
        _F.producer + b"PRODUCER",
        "string",
        "As for a queue: the producer's last broadcast.",
        "`publish_dedup_window` after the last one.",
    ),
    KeyDescription(
        _F.producer + b"PRODUCER:NUMBER",
        "string",
        "As for a queue: a retry has stored this broadcast.",
        "`publish_dedup_window`.",
    ),
)

OF_THE_DATABASE = (
    KeyDescription(
        _KEYS.queues,
        "zset",
        "All queues: +inf for a lasting one; for a transient one until when it lives, ms since the epoch; negative for one "
        "that is gone (tombstone).",
        FOREVER,
        of_empty_queue=True,
    ),
    KeyDescription(_KEYS.queue_ids, "string", "The last queue id that was given.", FOREVER, of_empty_queue=True),
    KeyDescription(
        _KEYS.exchanges, "hash", "Exchange -> its record (JSON: type, arguments).", "Until the last exchange is deleted."
    ),
    KeyDescription(
        _KEYS.policies,
        "hash",
        "Pattern of queues' names -> the policy that steers them (JSON, see `broker/queues/policies.py`); '' -> the version.",
        "From the first policy on.",
    ),
    KeyDescription(
        _KEYS.limiter_rules,
        "hash",
        "Limiter, or limiter and key -> what was set for it at run time: from and until when (ms) nothing passes, then a rule "
        "that goes before those of messages.",
        "Until it is taken away; a pause is removed after its end.",
    ),
    KeyDescription(
        _KEYS.limiters, "zset", "Limiters that were used, with their keys -> since when, ms since the epoch.", "The last 10,000."
    ),
    KeyDescription(
        _KEYS.limiter_queues,
        "zset",
        "Which queues have messages that wait for a limiter, with the score 0: limiter and key, NUL, the queue's part of its "
        "keys.",
        "As long as it has members.",
    ),
    KeyDescription(
        _BUCKET, "string", "The tokens of a bucket, and when it had them (ms).", "A minute longer than it is not full."
    ),
    KeyDescription(_WINDOW, "zset", "What was let through in a sliding window -> when, ms.", "A minute longer than the window."),
    KeyDescription(
        _PLACES, "zset", "Messages that have a place of a concurrency limiter -> since when, ms.", "As long as it has members."
    ),
    KeyDescription(
        _KEYS.database_id,
        "string",
        "The version of the data format, and behind a dot a random id of the database: a flushed one gets another. With "
        "shards, behind another dot their number.",
        FOREVER,
        of_empty_queue=True,
    ),
    KeyDescription(
        _KEYS.shards_raise,
        "hash",
        "With `shards raise`, in the first shard: the number that is raised to; which command does it, until when (ms).",
        "Until the raise is done.",
    ),
    KeyDescription(
        _KEYS.always_swept,
        "set",
        "Queues that are swept by any process, because their messages may be due while they have no consumer.",
        "As long as it has members.",
    ),
    KeyDescription(_KEYS.sweep_wakeup, "zset", "Wake-up: a new member of that set.", "Seconds.", plain_writers=TAKEN_BY_THREAD),
    KeyDescription(
        _PROCESSES,
        "hash",
        "The processes that consume: name -> record (JSON, see `broker/consumers/processes.py`), behind `lost ` while its "
        "messages are put back; and `version`, which grows with each change.",
        "Until the last process has stopped, or is recovered; a day after the last report.",
    ),
    KeyDescription(
        _HEARTBEATS,
        "zset",
        "When the next heartbeat of each is due: process -> ms since the epoch.",
        "As `processes`.",
    ),
    KeyDescription(
        _LEADER, "hash", "Which process does what any may do: the leader.", "A day after the last heartbeat.", LEADER_FIELDS
    ),
    KeyDescription(_KEYS.event_logs, "set", "Queues that have lifecycle events, also those that write none any more.", FOREVER),
    KeyDescription(
        _KEYS.audit,
        "stream",
        "Actions of operators: `actor`, `via` (`cli`, `web`, `api`), `from`, `action`, `queue`, `count`, `outcome`, `details` "
        "(JSON), and `begun`, the id of the entry of its beginning.",
        "The last 10,000, some 2 MB.",
        plain_writers="who acts",
    ),
    KeyDescription(
        _KEYS.tracks,
        "zset",
        "Tracked deliveries that are not resolved -> their deadline, ms since the epoch.",
        "As long as it has members.",
        plain_writers="the publisher of a tracked delivery; the process that resolves it",
    ),
    KeyDescription(
        _TRACK, "hash", "One tracked delivery.", "The ack timeout, and then as long as its state is kept.", DELIVERY_FIELDS
    ),
    KeyDescription(_TRACK_EVENTS, "stream", "The answers in their order: `recipient`, `outcome`.", "As the delivery."),
    KeyDescription(
        _KEYS.client_wakeup("ID"),
        "zset",
        "Private wake-up of one blocked client: ends its BZMPOP.",
        "Seconds, or until it takes it.",
        plain_writers="the blocked client, which takes the member (BZMPOP, DEL)",
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
