"""Spells every key in Redis; nothing else in the package does.

A key is `global_keyprefix` + kind + `{tag}` + rest. The first braces are Redis Cluster's hash tag: all keys of one queue share
a slot, so that one script may touch them. With a prefix that has a tag (`connection/cluster_address.py`) all keys of a broker do.
Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import NamedTuple

#: Version of the data layout, stored in every queue's record, and in `database_id`: each process checks it first.
FORMAT_VERSION = 1
#: The same of a broker that is one of several shards: a version that knows none would publish into keys that no process reads.
SHARDS_FORMAT_VERSION = 2

RESERVED_FIRST_CHARACTERS = {"}": "%7D", "%": "%25"}


def encode_name(name: str) -> bytes:
    """Return a name, or a text with one, as the server has it.

    A name whose bytes are no UTF-8 has surrogates (PEP 383), which hiredis refuses to pack: so every command gets bytes.
    """
    return name.encode("utf-8", "surrogateescape")


def decode_name(raw: bytes) -> str:
    """Return the name, or the text with one, whose `encode_name` is `raw`."""
    return raw.decode("utf-8", "surrogateescape")


def hash_tag(name: str) -> str:
    """Return what stands between the braces for the queue `name`.

    Redis takes the tag up to the first `}`; an empty tag means "hash the whole key", which would scatter the queue's keys.
    So a leading `}` is escaped, and a leading `%` with it, to keep two names from meeting.
    """
    first = name[:1]
    return RESERVED_FIRST_CHARACTERS.get(first, first) + name[1:]


def name_of(tag: str) -> str:
    """Return the name whose `hash_tag` is `tag`."""
    for character, escaped in RESERVED_FIRST_CHARACTERS.items():
        if tag.startswith(escaped):
            return character + tag[len(escaped) :]
    return tag


class KeyParts(NamedTuple):
    """What a key found on the server is."""

    #: `message`, `queue`, `meta`, `binding`, …
    kind: str
    #: The queue, exchange, client or stream between the braces.
    name: str
    #: What comes after them: a message's tag, a producer's id.
    rest: bytes


#: The kinds of keys that belong to one queue alone.
QUEUE_KINDS = frozenset(
    (
        *("message", "meta", "queue", "delayed", "messages_index", "expiry"),
        *("dlx_outbox", "dead", "trash", "wakeup", "schedule_wakeup", "consumers", "held", "groups"),
        *("limited", "limited_until", "group_times"),
    )
)
#: What the tag of a staged body starts with (`broker/publishing/publisher.py`).
STAGED = b"staged."
#: What has a meaning in a pattern of SCAN.
_GLOB = re.compile(rb"([*?\[\]\\^])")
#: Behind the braces of these stands a text of an application, which may have braces, too.
_FREE = re.compile(rb"(dedup|task_index):\{(.+?)\}:(.*)", re.DOTALL)
_PARTS = re.compile(rb"([a-z_]+):\{(.*)\}(?::([^{}]*))?", re.DOTALL)


def process_keys(prefix: str) -> tuple[bytes, bytes, bytes]:
    """Return the keys of the registry of processes: their records, when their next heartbeats are due, and which one leads."""
    processes, heartbeats, leader = (
        encode_name(f"{prefix}{kind}:{{presence}}") for kind in ("processes", "heartbeats", "leader")
    )
    return processes, heartbeats, leader


class QueueKeys:
    """The keys of one queue, as bytes."""

    def __init__(self, name: str, prefix: str) -> None:
        def key(kind: str, rest: str = "") -> bytes:
            return encode_name(f"{prefix}{kind}:{{{hash_tag(name)}}}{rest}")

        self.name = name
        self.meta = key("meta")
        self.ready = key("queue")
        self.delayed = key("delayed")
        self.index = key("messages_index")
        #: Messages whose groups hold them back; their scripts spell these two themselves (`lua/include/groups.lua`).
        self.held = key("held")
        #: What of each group is held, and what is ready or in work.
        self.groups = key("groups")
        #: For how long messages of each group were in work within the last minutes, of a fair queue.
        self.group_times = key("group_times")
        #: Messages that wait for their limiters, and when each of these is looked at again (`lua/include/limiters.lua`).
        self.limited, self.limited_until = key("limited"), key("limited_until")
        #: Ready messages that have a TTL, by their expiry.
        self.expiry = key("expiry")
        #: Dead letters on their way to a dead-letter exchange.
        self.dlx_outbox = key("dlx_outbox")
        self.dead = key("dead")
        #: Numbers of sets of removed messages, whose memory is not freed yet.
        self.trash = key("trash")
        #: A prefix: a message's hash is this and its tag.
        self.message = key("message", ":")
        self.wakeup = key("wakeup")
        self.schedule_wakeup = key("schedule_wakeup")
        #: Consumers, by when they joined: the one source of which there are.
        self.consumers = key("consumers")
        #: A prefix: a consumer's record is this and its id.
        self.consumer = key("consumer", ":")
        #: Consumers with credit, by priority, where one has a priority; exists exactly while the queue has rules for consumers.
        self.with_credit = key("with_credit")
        #: Lifecycle events, see `events.py`; they outlive the queue.
        self.events = key("events")
        self.events_meta = key("events_meta")
        #: What each reader of the events has committed.
        self.events_readers = key("events_readers")
        #: Prefixes: the events of one message (and its tag), and the messages of one task (and Celery's task id).
        self.event_index = key("event_index", ":")
        self.task_index = key("task_index", ":")
        #: Publishers that wait for room; with a suffix, the wake-up of one of them.
        self.waiting_publishers = key("waiting_publishers")
        #: A prefix: a producer's record is this and the producer's id.
        self.producer = key("producer", ":")
        #: A prefix: the message that stands for an `x-deduplication-id` is at this and the id.
        self.dedup = key("dedup", ":")
        #: Delivery tags of messages that a migration from another server has stored.
        self.migrated = key("migrated")
        #: Messages on their way to kombu's own transport on another server.
        self.leaving = key("leaving")
        #: Ids of moves of dead messages from queues of other shards -> when each was finished (ms), infinity before.
        self.moved_in = key("moved_in")
        #: Messages on their way to another shard -> the set that each was in, and its score there.
        self.leaving_shard = key("leaving_shard")
        #: A prefix: the hash of such a message is this and its tag.
        self.leaving_message = key("leaving_message", ":")

        #: What `declare` takes.
        self.declare = (
            *(self.meta, self.ready, self.delayed, self.index, self.with_credit, self.expiry, self.dlx_outbox, self.dead),
            *(self.wakeup, self.schedule_wakeup, self.consumers),
        )
        #: What `publish_ordinary` takes, before the producer's record; so does `publish_batch`.
        self.publish_ordinary = (self.meta, self.ready, self.message, self.wakeup)
        #: What the publish script takes, before the producer's record.
        self.publish = (self.meta, self.ready, self.delayed, self.message, self.wakeup, self.schedule_wakeup, self.expiry)
        #: What a script takes that may move a message between all of its states; `lua/include/state_keys.lua` has the same order.
        self.state_keys = (
            *(self.ready, self.delayed, self.index, self.message, self.wakeup, self.meta, self.schedule_wakeup),
            *(self.expiry, self.dlx_outbox, self.dead, self.trash),
        )
        #: What the claim script takes of each queue.
        self.claim = (
            *(self.ready, self.index, self.message, self.wakeup, self.meta),
            *(self.expiry, self.delayed, self.consumers, self.with_credit),
        )
        #: What the ack script takes.
        self.ack = (self.index, self.ready, self.delayed, self.dead, self.dlx_outbox, self.message, self.meta)
        #: What the release script takes.
        self.release = (
            *(self.ready, self.index, self.message, self.wakeup, self.expiry, self.schedule_wakeup, self.meta, self.delayed),
        )
        _, heartbeats, leader = process_keys(prefix)
        #: What a script takes that counts consumers: one counts as long as its process lives.
        self.living = (self.consumers, self.consumer, heartbeats)
        #: What the purge script takes.
        self.purge = (
            *(self.trash, self.meta, self.wakeup, self.expiry, self.groups, self.index, self.ready, self.delayed, self.held),
        )
        #: What the delete script takes.
        self.delete = (
            *(self.trash, self.meta, self.wakeup, self.schedule_wakeup, *self.living, self.expiry),
            *(self.with_credit, self.ready, self.delayed, self.index, self.dlx_outbox, self.dead, self.held, self.groups),
        )
        #: What the scripts take that deal with consumers; `lua/include/consumers.lua` has the same order.
        self.consumer_keys = (*self.state_keys, self.consumers, self.consumer, self.with_credit, heartbeats, leader)

    def wakeup_of(self, own: str) -> bytes:
        """Return the wake-up key of some of the queue's consumers: of a priority, or of one consumer; of all for ''."""
        return self.wakeup + b":" + own.encode() if own else self.wakeup

    def trash_set(self, number: bytes) -> bytes:
        """Return one of the sets that `trash` lists."""
        return self.trash + b":" + number

    def places(self) -> tuple[bytes, ...]:
        """Return the keys of which one at least exists while the queue has messages, or something to clear away."""
        return (self.ready, self.delayed, self.index, self.dlx_outbox, self.dead, self.trash, self.held)

    def structure(self) -> tuple[bytes, ...]:
        """Return the keys that hold the queue itself, without the messages' hashes."""
        return (
            *(self.meta, self.ready, self.delayed, self.index, self.expiry, self.dlx_outbox, self.dead, self.trash),
            *(self.wakeup, self.schedule_wakeup, self.consumers, self.with_credit, self.held, self.groups),
            *(self.limited, self.limited_until),
        )


class FanoutKeys(NamedTuple):
    """The keys of one fanout exchange, as bytes."""

    exchange: str
    stream: bytes
    #: A hash: how many broadcasts there were, and other counters.
    meta: bytes
    #: A zset: subscriber -> when it is overdue.
    subscribers: bytes
    #: A zset: subscriber -> number of the last broadcast that it has processed.
    cursors: bytes
    #: A hash: subscriber -> its record.
    records: bytes
    #: A zset of recent deaths.
    dead: bytes
    #: A prefix: a producer's record is this and the producer's id.
    producer: bytes
    #: A zset: publishers that wait for capacity -> their tickets.
    waiting_publishers: bytes

    def registry(self) -> tuple[bytes, ...]:
        """Return what the scripts of the subscriber registry take."""
        return (self.stream, self.meta, self.subscribers, self.cursors, self.records)

    def everything(self) -> tuple[bytes, ...]:
        """Return what goes with the exchange."""
        return (*self.registry(), self.dead, self.waiting_publishers)


#: kombu's own `priority_steps`.
KOMBU_PRIORITY_STEPS = (0, 3, 6, 9)


class KombuKeys(NamedTuple):
    """The keys of kombu's own Redis transport (`kombu/transport/redis.py`, 5.6 and 5.7), as its options name them."""

    prefix: str = ""
    sep: str = "\x06\x16"
    unacked_key: str = "unacked"
    unacked_index_key: str = "unacked_index"

    def list_of(self, queue: str, step: int) -> bytes:
        """Return the list of a queue's messages of one of the `priority_steps`."""
        return encode_name(self.prefix + queue + (f"{self.sep}{step}" if step else ""))

    @property
    def unacked(self) -> bytes:
        """The hash of the messages that workers have: delivery tag -> JSON of message, exchange and routing key."""
        return encode_name(self.prefix + self.unacked_key)

    @property
    def unacked_index(self) -> bytes:
        """The zset of the same messages: delivery tag -> when it was delivered, in unix seconds of that worker."""
        return encode_name(self.prefix + self.unacked_index_key)

    def moving(self, queue: str) -> bytes:
        """Return our list of a queue's messages on their way to another server."""
        return encode_name(f"{self.prefix}celery_redis_plus.moving:{queue}")

    def taken(self, queue: str) -> bytes:
        """Return our zset of the ids of a queue's messages that came from another server."""
        return encode_name(f"{self.prefix}celery_redis_plus.taken:{queue}")

    def binding(self, exchange: str) -> bytes:
        """Return the set of an exchange's bindings: routing key, pattern and queue, with `sep` between them."""
        return encode_name(f"{self.prefix}_kombu.binding.{exchange}")

    @property
    def bindings(self) -> bytes:
        """A glob pattern for SCAN that finds every `binding`."""
        return _GLOB.sub(rb"\\\1", self.binding("")) + b"*"

    def exchange_of(self, binding: bytes) -> str:
        """Return the exchange whose `binding` a key is."""
        return decode_name(binding.removeprefix(self.binding("")))


class Keys:
    """Spells keys under one `global_keyprefix`."""

    def __init__(self, prefix: str = "") -> None:
        """Remember `prefix`, which is put before every key."""
        self.prefix = prefix
        self.kombu = KombuKeys(prefix)
        self.queue = lru_cache(maxsize=4096)(partial(QueueKeys, prefix=prefix))
        self.queues = self._key("queues")
        self.queue_ids = self._key("queue_ids")
        #: A random id: a database that was flushed gets another one.
        self.database_id = self._key("database_id")
        #: A hash: the raise of the number of shards that is not done, and which command holds it.
        self.shards_raise = self._key("shards_raise")
        #: Queues with work for the sweep even without consumers, and the wake-up for a new one.
        self.always_swept = self._key("always_swept")
        self.sweep_wakeup = self._key("sweep_wakeup")
        #: Which connections each consuming process has, when each was heard of last, and which one leads.
        self.processes = process_keys(prefix)
        self.exchanges = self._key("exchanges")
        #: A hash: pattern of queues' names -> the policy that steers them.
        self.policies = self._key("policies")
        #: A hash: limiter, or one key of it -> what was set for it at run time.
        self.limiter_rules = self._key("limiter_rules")
        #: A zset: limiters that were used, each with its key -> when that began, ms.
        self.limiters = self._key("limiters")
        #: A zset of limiters and the queues whose messages wait for them.
        self.limiter_queues = self._key("limiter_queues")
        #: A zset: tracked deliveries that are not resolved -> when they should be.
        self.tracks = self._key("tracks")
        #: A stream: who did what, as an operator.
        self.audit = self._key("audit:{actions}")
        #: A set: the queues that have lifecycle events, also those that are deleted by now.
        self.event_logs = self._key("event_logs")

    def _key(self, text: str) -> bytes:
        return encode_name(self.prefix + text)

    def parts(self, key: bytes) -> KeyParts | None:
        """Return what `key` is, None for one that is not ours or has another form (lists of queues, streams)."""
        own = self._key("")
        match = (_FREE.fullmatch(key, len(own)) or _PARTS.fullmatch(key, len(own))) if key.startswith(own) else None
        if match is None:
            return None
        return KeyParts(match[1].decode(), name_of(decode_name(match[2])), match[3] or b"")

    def kind(self, key: bytes) -> str | None:
        """Return the kind of a key that may be ours by its name: `message`, `queues`, … None: it is none.

        Another program may have a key of such a name, above all where there is no prefix. Streams of broadcasts have any name:
        see `stream_of`.
        """
        own = self._key("")
        if not key.startswith(own):
            return None
        for kombus, kind in ((self.kombu.moving(""), "moving"), (self.kombu.taken(""), "taken")):
            if key.startswith(kombus):
                return kind
        parts = self.parts(key)
        return key[len(own) :].decode("utf-8", "surrogateescape") if parts is None else parts.kind

    def stream_of(self, meta: bytes) -> bytes:
        """Return the stream of the fanout exchange whose counters are at the key `meta` (`fanout:{…}`)."""
        parts = self.parts(meta)
        return b"" if parts is None else self._key(parts.name)

    @property
    def any(self) -> bytes:
        """A glob pattern for SCAN that finds every key with the prefix."""
        return _GLOB.sub(rb"\\\1", self._key("")) + b"*"

    @property
    def pattern(self) -> bytes:
        """A glob pattern for SCAN that finds every key that `parts` knows."""
        return _GLOB.sub(rb"\\\1", self._key("")) + b"*:{*"

    def binding(self, exchange: str) -> bytes:
        """Return the hash of the bindings of `exchange`."""
        return self._key(f"binding:{{{hash_tag(exchange)}}}")

    def track(self, track: str) -> tuple[bytes, bytes]:
        """Return the state (hash) and the answers (stream) of one tracked delivery."""
        return self._key(f"track:{{{track}}}"), self._key(f"track_events:{{{track}}}")

    def limiter(self, limiter: str) -> tuple[bytes, bytes, bytes]:
        """Return the state of a limiter with its key: the tokens of a bucket, what is in a window, places that are taken."""
        bucket, window, places = (self._key(f"limiter_{kind}:{{{limiter}}}") for kind in ("bucket", "window", "places"))
        return bucket, window, places

    def client_wakeup(self, client: str) -> bytes:
        """Return the private wake-up key of one blocked client."""
        return self._key(f"client_wakeup:{{{client}}}")

    def fanout(self, exchange: str, prefix: str) -> FanoutKeys:
        """Return the keys of the fanout `exchange`; `prefix` is the formatted `fanout_prefix`, such as `/0.`."""
        tag = f"{{{prefix}{exchange}}}"
        return FanoutKeys(
            exchange=exchange,
            stream=self._key(f"{prefix}{exchange}"),
            meta=self._key(f"fanout:{tag}"),
            subscribers=self._key(f"subscribers:{tag}"),
            cursors=self._key(f"cursors:{tag}"),
            records=self._key(f"subscriber:{tag}"),
            dead=self._key(f"dead_subscribers:{tag}"),
            producer=self._key(f"producer:{tag}:"),
            waiting_publishers=self._key(f"waiting_publishers:{tag}"),
        )
