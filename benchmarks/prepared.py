"""Clients whose commands are prepared: what kombu's redis transport and ours send for a message, without their Python.

One process drives many of them, and keeps the server busy, which no Python client does. A client is a generator: it yields what
it writes and how many replies it waits for, and gets these. What the transports send was read from MONITOR.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hiredis import Reader

from benchmarks.bench import BODY
from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED_BYTES
from celery_redis_plus.connection.protocol import pack_call, pack_command
from celery_redis_plus.keys import Keys
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from redis import Redis

#: Yields bytes to write and the number of replies to wait for; gets the replies.
Client = Generator[tuple[bytes, int], list[Any], None]
QUEUE = "bench.prepared"
#: Priorities of kombu's redis transport: a BRPOP names a list for each.
KOMBU_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
VISIBILITY_MS = 300_000
DEDUP_WINDOW_MS = 900_000
_PAYLOAD = json.dumps(BODY).encode()


@dataclass
class Tally:
    """What the clients of a process have done."""

    published: int = 0
    consumed: int = 0


def kombu_publisher(tally: Tally, queue: str = QUEUE) -> Client:
    """LPUSH, with kombu's envelope."""
    for _ in count():
        properties = {"delivery_mode": 2, "delivery_tag": str(uuid4()), "body_encoding": "base64", "priority": 0}
        properties["delivery_info"] = {"exchange": "", "routing_key": queue}
        message = {"body": "x" * 1372, "content-encoding": "utf-8", "content-type": "application/json"}
        yield pack_command(("LPUSH", queue, json.dumps({**message, "headers": {}, "properties": properties}))), 1
        tally.published += 1


def kombu_consumer(tally: Tally, prefetch: int, queue: str = QUEUE, *, early: bool = False) -> Client:
    """BRPOP, a transaction that notes the message, another that forgets it; the same at any prefetch count."""
    del prefetch, early
    multi, execute = pack_command(("MULTI",)), pack_command(("EXEC",))
    take = pack_command(("BRPOP", *(queue + step for step in KOMBU_STEPS), 1))
    while True:
        taken = (yield take, 1)[0]
        if taken is None:
            continue
        tag = json.loads(taken[1])["properties"]["delivery_tag"]
        noted = pack_command(("ZADD", "unacked_index", 1.5, tag)), pack_command(("HSET", "unacked", tag, taken[1]))
        yield b"".join((multi, *noted, execute)), 4
        forgotten = pack_command(("ZREM", "unacked_index", tag)), pack_command(("HDEL", "unacked", tag))
        yield b"".join((multi, *forgotten, execute)), 4
        tally.consumed += 1


def our_publisher(tally: Tally, queue: str = QUEUE) -> Client:
    """One call of the script, with a producer and a number."""
    of = Keys().queue(queue)
    properties = {"delivery_mode": 2, "delivery_info": {"exchange": "", "routing_key": queue}, "priority": 0}
    envelope = {"content-type": "application/json", "content-encoding": "utf-8", "headers": {}, "properties": properties}
    payload = json.dumps(envelope, separators=(",", ":")).encode() + b"\n" + _PAYLOAD
    keys = (*of.publish_ordinary, of.producer + uuid4().hex[:12].encode())
    queue_id = (yield pack_command(("HGET", of.meta, "id")), 1)[0]
    for number in count(1):
        arguments = (payload, 255, queue_id, number, DEDUP_WINDOW_MS)
        stored = (yield pack_call(script("publish_ordinary").sha, keys, arguments), 1)[0]
        tally.published += bool(stored)


def our_consumer(tally: Tally, prefetch: int, queue: str = QUEUE, *, early: bool = False) -> Client:
    """Claims of `prefetch` messages. Late acks leave before the next message, the last with the next claim; early ones wait."""
    of, holder = Keys().queue(queue), uuid4().hex[:12]
    ack_script, claim_script = script("ack").sha, script("claim").sha
    last: Sequence[Any] = ()
    waiting = 0
    while True:
        arguments = (prefetch, VISIBILITY_MS, holder, MAX_CLAIMED_BYTES, 0, "1@bench", len(last))
        replies = yield pack_call(claim_script, of.claim, (*arguments, *(item for tag in last for item in (1, tag)))), 1 + waiting
        tags = [header.split()[1] for header in replies[-1][1::2]]
        last = tags if early else tags[-1:]
        waiting = len(tags) - len(last)
        for tag in tags[:waiting]:
            yield pack_call(ack_script, of.ack, (tag,)), 0
        tally.consumed += len(tags)


def load_scripts(client: Redis) -> None:
    """Make the server know the scripts that the clients call by their hashes."""
    for name in ("publish_ordinary", "claim", "ack"):
        client.script_load(script(name).source)


class Driver:
    """Clients, each on a connection of its own, that are written to and read from by turns."""

    def __init__(self, port: int, clients: Sequence[Client]) -> None:
        """Connect them."""
        self._clients = [_Connected(port, client) for client in clients]

    def turn(self, wanted: Callable[[int], bool] = lambda _: True) -> None:
        """Let each client for whose number `wanted` is true send, then take the replies of all."""
        turn = [client for number, client in enumerate(self._clients) if wanted(number)]
        for client in turn:
            client.send()
        for client in turn:
            client.receive()

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.socket.close()


class _Connected:
    def __init__(self, port: int, client: Client) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader()
        self._client = client
        self._next, self._replies = next(client)

    def send(self) -> None:
        """Write what is next; what has no reply of its own goes in writes of its own, before it."""
        while not self._replies:
            self.socket.sendall(self._next)
            self._next, self._replies = self._client.send([])
        self.socket.sendall(self._next)

    def receive(self) -> None:
        replies = []
        while len(replies) < self._replies:
            reply = self._reader.gets()
            if reply is False:
                received = self.socket.recv(1 << 20)
                if not received:
                    raise ConnectionError("the server has closed the connection")
                self._reader.feed(received)
                continue
            if isinstance(reply, Exception):
                raise reply
            replies.append(reply)
        self._next, self._replies = self._client.send(replies)


@contextmanager
def driven(port: int, clients: Sequence[Client]) -> Iterator[Driver]:
    """Clients for a while."""
    driver = Driver(port, clients)
    try:
        yield driver
    finally:
        driver.close()
