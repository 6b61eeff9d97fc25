"""Spells every key in Redis; nothing else in the package does.

A key is `global_keyprefix` + kind + `{tag}` + rest. The braces are Redis Cluster's hash tag: all keys of one queue share a
slot, so that one script may touch them together.
Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

#: Version of the data layout, stored in every queue's record.
FORMAT_VERSION = 1

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


@dataclass(frozen=True, slots=True)
class KeyParts:
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
        *("dying", "dead", "trash", "bell", "timer", "consumers"),
    )
)
_PARTS = re.compile(rb"([a-z_]+):\{(.*)\}(?::([^{}]*))?", re.DOTALL)


#: Kinds of keys by their type on the server, as the command TYPE names it.
_TYPES = {
    "hash": "message meta consumer events_meta events_readers exchanges binding track fanout subscriber",
    "zset": "queue delayed messages_index expiry dying dead trash bell timer consumers interested room queues tracks wake "
    "subscribers cursors dead_subscribers expired expired_names expired_bytes bell_tended bell_expired",
    "set": "tended archives",
    "stream": "events track_events",
    "string": "pub task trail unique queue_ids epoch",
}
_TYPE_OF = {kind: name for name, kinds in _TYPES.items() for kind in kinds.split()}


def type_of(key: bytes) -> str | None:
    """Return the type that `key`, under whatever prefix, has to have on the server; None where that is not known."""
    kind, _, rest = decode_name(key).partition(":{")
    if kind == "consumer" and rest.endswith(":probe"):
        return "zset"
    # A prefix may end in a letter: of all kinds that the text may end with, the longest.
    return next((_TYPE_OF[known] for known in sorted(_TYPE_OF, key=len, reverse=True) if kind.endswith(known)), None)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue, as bytes."""

    name: str
    ready: bytes
    delayed: bytes
    index: bytes
    #: Ready messages that have a TTL, by their expiry.
    expiry: bytes
    #: Dead messages on their way to a dead-letter exchange.
    dying: bytes
    dead: bytes
    #: Numbers of sets of removed messages, whose memory is not freed yet.
    trash: bytes
    bell: bytes
    timer: bytes
    meta: bytes
    #: Consumers, by the time until which they count as alive without being heard of: the one source of which there are.
    consumers: bytes
    #: A prefix: a consumer's record is this and its id.
    consumer: bytes
    #: Consumers with credit, by priority, where one has a priority; exists exactly while the queue has rules for its consumers.
    interested: bytes
    #: Lifecycle events, see `events.py`; they outlive the queue.
    events: bytes
    events_meta: bytes
    #: What each reader of the events has committed.
    events_readers: bytes
    #: Publishers that wait for room; with a suffix, the bell of one of them.
    room: bytes
    #: Prefixes: the events of one message (and its tag), and the messages of one task (and Celery's task id).
    trail: bytes
    task: bytes
    #: A prefix: who stands for an `x-deduplication-id` is this and the id.
    unique: bytes
    #: A prefix: a message's hash is this and its tag.
    message: bytes
    #: A prefix: a producer's record is this and the producer's id.
    producer: bytes
    #: What the publish script takes, before the producer's record.
    publish: tuple[bytes, ...]
    #: What a script takes that may move a message to any of its places; `lua/include/state_keys.lua` has the same order.
    places: tuple[bytes, ...]
    #: What the claim script takes of each queue.
    claim: tuple[bytes, ...]
    #: What the ack script takes.
    ack: tuple[bytes, ...]
    #: What the scripts take that deal with consumers; `lua/include/consumers.lua` has the same order.
    crew: tuple[bytes, ...]

    def bell_of(self, own: str) -> bytes:
        """Return the bell of some of the queue's consumers: a priority's, or one consumer's; of nobody in particular for ''."""
        return self.bell + b":" + own.encode() if own else self.bell

    def probe_of(self, consumer: str) -> bytes:
        """Return the bell by which a consumer's process is asked whether it is alive."""
        return self.consumer + consumer.encode() + b":probe"

    def trash_set(self, number: bytes) -> bytes:
        """Return one of the sets that `trash` lists."""
        return self.trash + b":" + number

    def structure(self) -> tuple[bytes, ...]:
        """Return the keys that hold the queue itself, without the messages' hashes."""
        return (
            self.meta,
            self.ready,
            self.delayed,
            self.index,
            self.expiry,
            self.dying,
            self.dead,
            self.trash,
            self.bell,
            self.timer,
            self.consumers,
            self.interested,
        )


@dataclass(frozen=True, slots=True)
class FanoutKeys:
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

    def registry(self) -> tuple[bytes, ...]:
        """Return what the scripts of the subscriber registry take."""
        return (self.stream, self.meta, self.subscribers, self.cursors, self.records)

    def everything(self) -> tuple[bytes, ...]:
        """Return what goes with the exchange."""
        return (*self.registry(), self.dead)


class Keys:
    """Spells keys under one `global_keyprefix`."""

    def __init__(self, prefix: str = "") -> None:
        """Remember `prefix`, which is put before every key."""
        self.prefix = prefix
        self.queue = lru_cache(maxsize=4096)(self._queue)
        self.queues = self._key("queues")
        self.queue_ids = self._key("queue_ids")
        #: Tells one life of the database from the next.
        self.epoch = self._key("epoch")
        #: Queues with work for the sweep even where nobody consumes them, and the bell that tells of a new one.
        self.tended = self._key("tended")
        self.tended_bell = self._key("bell_tended")
        #: Tasks that expired and that no worker has revoked yet: all of them, the prefix of their copies, their tasks' names, the
        #: prefix of a list for each name, their sizes, and the bell that tells of a new one. In the order of
        #: `lua/include/expired_tasks.lua`.
        self.expired = (
            self._key("expired"),
            self._key("expired_task:"),
            self._key("expired_names"),
            self._key("expired_named:"),
            self._key("expired_bytes"),
            self._key("bell_expired"),
        )
        self.exchanges = self._key("exchanges")
        #: A zset: tracked deliveries that are not resolved -> when they should be.
        self.tracks = self._key("tracks")
        #: A set: the queues that have lifecycle events, also those that are deleted by now.
        self.archives = self._key("archives")

    def _key(self, text: str) -> bytes:
        return encode_name(self.prefix + text)

    def kombu_lists(self, queue: str) -> list[bytes]:
        """Return a queue's lists in kombu's own Redis transport, by its default `priority_steps` and `sep` (kombu 5.6, 5.7)."""
        return [self._key(queue + step) for step in ("", "\x06\x163", "\x06\x166", "\x06\x169")]

    def kombu_binding(self, exchange: str) -> bytes:
        """Return the set of an exchange's bindings in kombu's own Redis transport."""
        return self._key(f"_kombu.binding.{exchange}")

    def _queue(self, name: str) -> QueueKeys:
        tag = hash_tag(name)
        ready, delayed = self._key(f"queue:{{{tag}}}"), self._key(f"delayed:{{{tag}}}")
        meta, message = self._key(f"meta:{{{tag}}}"), self._key(f"message:{{{tag}}}:")
        bell, timer = self._key(f"bell:{{{tag}}}"), self._key(f"timer:{{{tag}}}")
        index, expiry = self._key(f"messages_index:{{{tag}}}"), self._key(f"expiry:{{{tag}}}")
        dying, dead = self._key(f"dying:{{{tag}}}"), self._key(f"dead:{{{tag}}}")
        trash = self._key(f"trash:{{{tag}}}")
        consumers, consumer = self._key(f"consumers:{{{tag}}}"), self._key(f"consumer:{{{tag}}}:")
        interested = self._key(f"interested:{{{tag}}}")
        places = (ready, delayed, index, message, bell, meta, timer, expiry, dying, dead, trash)
        return QueueKeys(
            name=name,
            ready=ready,
            delayed=delayed,
            index=index,
            expiry=expiry,
            dying=dying,
            dead=dead,
            trash=trash,
            bell=bell,
            timer=timer,
            meta=meta,
            consumers=consumers,
            consumer=consumer,
            interested=interested,
            events=self._key(f"events:{{{tag}}}"),
            events_meta=self._key(f"events_meta:{{{tag}}}"),
            events_readers=self._key(f"events_readers:{{{tag}}}"),
            room=self._key(f"room:{{{tag}}}"),
            trail=self._key(f"trail:{{{tag}}}:"),
            task=self._key(f"task:{{{tag}}}:"),
            unique=self._key(f"unique:{{{tag}}}:"),
            message=message,
            producer=self._key(f"pub:{{{tag}}}:"),
            publish=(meta, ready, delayed, message, bell, timer, expiry),
            places=places,
            claim=(ready, index, message, bell, meta, expiry, delayed, consumers, interested),
            ack=(index, ready, delayed, dead, dying, message, meta),
            crew=(*places, consumers, consumer, interested),
        )

    def parts(self, key: bytes) -> KeyParts | None:
        """Return what `key` is, None for one that is not ours or has another form (lists of queues, streams)."""
        match = _PARTS.fullmatch(key, len(self._key(""))) if key.startswith(self._key("")) else None
        if match is None:
            return None
        return KeyParts(match[1].decode(), name_of(decode_name(match[2])), match[3] or b"")

    @property
    def pattern(self) -> bytes:
        """A glob pattern for SCAN that finds every key that `parts` knows."""
        return re.sub(rb"([*?\[\]\\^])", rb"\\\1", self._key("")) + b"*:{*"

    def binding(self, exchange: str) -> bytes:
        """Return the hash of the bindings of `exchange`."""
        return self._key(f"binding:{{{hash_tag(exchange)}}}")

    def track(self, track: str) -> tuple[bytes, bytes]:
        """Return the state (hash) and the answers (stream) of one tracked delivery."""
        return self._key(f"track:{{{track}}}"), self._key(f"track_events:{{{track}}}")

    def wake(self, client: str) -> bytes:
        """Return the private bell of one blocked client."""
        return self._key(f"wake:{{{client}}}")

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
            producer=self._key(f"pub:{tag}:"),
        )
