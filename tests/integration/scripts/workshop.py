"""A queue with messages in every place, the rooms that call the scripts, and a wire on which one script fails."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.consumers.registry import Consumers
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
from celery_redis_plus.broker.dead_letters.store import DeadLetters, Move
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.protocol import pack_call
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import Script, script
from celery_redis_plus.stored_message import Outgoing
from tests.support.clock import ServerClock
from tests.support.failing import failing_at
from tests.support.invariants import PLACES

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.stored_message import Claimed

START_MS = 1_767_225_600_000
VISIBILITY_S = 30
DEAD_MAX = 5
#: Bodies longer than this are staged, see the fixture.
LARGE = 200
#: Hundreds of workshops are filled and counted: the server counts, in one round trip.
BODIES = """
local found = {}
for i = 1, #KEYS, 2 do
  for _, tag in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
    local payload, body = unpack(redis.call('HMGET', KEYS[i + 1] .. tag, 'payload', 'body'))
    table.insert(found, body or string.match(payload or '', '\\n(.*)') or '')
  end
end
return found
"""
#: Let queues have been swept just now, and no consumer be waited for.
SWEPT = """
for _, meta in ipairs(KEYS) do
  if redis.call('HEXISTS', meta, 'id') == 1 then
    local swept = tonumber(redis.call('HGET', meta, 'swept') or 0)
    redis.call('HSET', meta, 'swept', string.format('%d', math.max(swept, ARGV[1])), 'grace', 0)
  end
end
"""


class FailingConnection(CommandConnection):
    """A connection on which one script fails at its N-th writing command."""

    fails: tuple[str, int] | None = None

    def call_packed(self, what: Script, packed: bytes) -> Any:
        return super().call_packed(*self._failing(what, packed))

    def send_packed_nowait(self, what: Script, packed: bytes, **options: Any) -> None:
        super().send_packed_nowait(*self._failing(what, packed), **options)

    def _failing(self, what: Script, packed: bytes) -> tuple[Script, bytes]:
        if self.fails is None or what.name != self.fails[0]:
            return what, packed
        failing = failing_at(*self.fails)
        return failing, packed.replace(what.sha, failing.sha, 1)


class Workshop:
    """Queue `q` with messages in every place, queue `d` for what leaves it."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        client.flushdb()
        self.clock = ServerClock(client, START_MS)
        place = client.connection_pool.connection_kwargs
        address = Address.from_parts(hostname=place["host"], port=place["port"], virtual_host=str(place.get("db") or 0))
        self.commands = FailingConnection(Connector(address, Options()), "test", timeout=5)
        self.keys = Keys()
        self.q = self.keys.queue("q")
        self.unacked_messages = UnackedMessages()
        topology = DeclaredTopology()
        self.queues = Queues(self.commands, self.keys, transient_ttl_s=3600, topology=topology)
        self.bindings = Bindings(self.commands, self.keys, topology)
        self.publisher = Publisher(self.commands, self.keys, dedup_window_s=900, on_missing=self.queues.revive)
        self.claim_commands = ClaimCommands(self.commands, self.keys, holder="holder", visibility_timeout_s=VISIBILITY_S)
        self.acknowledger = Acknowledger(
            self.commands, self.keys, self.unacked_messages, dead_letter_max=DEAD_MAX, delivery_limit=5
        )
        self.dead = DeadLetters(self.commands, self.keys)
        self.messages = Messages(self.commands, self.keys, dead_letter_max=DEAD_MAX)
        self.consumers = Consumers(self.commands, self.keys)
        self.pausing = Pausing(self.commands, self.keys)
        limits = SweepLimits(VISIBILITY_S, 5, DEAD_MAX, 1e6)
        self.sweeper = Sweeper(self.commands, self.keys, ConsumedQueues(), name="s", limits=limits, forward=self.forward)
        #: Of all that is published.
        self.envelope = b"{}"
        self.numbers = itertools.count(1)
        #: The claims of the message(s) that are held.
        self.held: list[Claimed] = []

    def fill(self, limiter: str = "", **arguments: Any) -> None:
        """Put two messages into each place of `q`; all have the `limiter`."""
        self.declare("q", **arguments)
        self.declare("d")
        if arguments.keys() & {"x-group-concurrency", "x-fair"}:
            self.envelope = b'{"headers":{"x-message-group":"g"}}'
        if limiter:
            self.envelope = json.dumps({"headers": {"x-limiter": limiter}}).encode()
        self.publish(b"dead1", b"dead2")
        self.acknowledger.settle(self.holding(self.claim()), Settlement.REJECT)
        self.publish(b"held1", b"held2")
        self.held = self.claim()
        self.publish(b"ready1", b"ready2", b"ready3")
        self.publish(b"mortal", life="+600000")
        self.publish(b"later1", b"later2", eta="+20000")
        self.sweep()

    def declare(self, name: str, **arguments: Any) -> None:
        self.queues.declare(name, QueueArguments.parse(name, durable=True, arguments=arguments))

    def publish(self, *bodies: bytes, queue: str = "q", **properties: Any) -> None:
        limits = self.client.hget(self.q.meta, "limited")
        for body in bodies:
            eta, life = properties.get("eta", 0), properties.get("life", "")
            if limits is None:
                message = Outgoing(self.envelope, body, 255, eta, life)
                if properties.get("ordinary"):
                    message.queue_id, message.ordinary = self.queues.known(queue).id, True
                self.publisher.to_queue(queue, message, PublishAttempt())
            else:
                keys = [*self.q.state_keys, self.q.waiting_publishers, *self.q.living, self.q.producer + b"p"]
                number = next(self.numbers)
                payload = self.envelope + b"\n" + body
                self.run("publish_bounded", keys, payload, 255, eta, number, 0, 900_000, life, limits, "0 0 me ", "")

    def claim(self, *queues: str, credit: int = 100) -> list[Claimed]:
        return self.claim_commands.claim(queues or ("q",), credit, share=False).messages

    @staticmethod
    def holding(messages: list[Claimed]) -> list[UnackedMessage]:
        return [UnackedMessage(m.tag, m.queue, m.claim, "holder") for m in messages]

    def settle(self, name: str) -> None:
        self.acknowledger.settle(self.holding(self.held), Settlement[name])

    def run(self, name: str, keys: Any, *arguments: Any) -> Any:
        return self.commands.call_packed(script(name), pack_call(script(name).sha, keys, arguments))

    def tag(self, place: str, number: int = 0) -> str:
        tags: list[bytes] = self.client.zrange(getattr(self.q, place), 0, -1)
        if place == "ready":
            tags += self.client.zrange(self.q.held, 0, -1)
        return tags[number].decode()

    def forward(self, queue: str) -> None:
        for letter in self.dead.awaiting_dlx(queue):
            self.dead.forward_all([Move.of(letter, ["d"], ("", "d"))])

    def sweep(self) -> None:
        """Sweep both queues, as if they had been swept just now; a clock that has gone back since then is still noticed."""
        self.client.eval(SWEPT, 2, *(self.keys.queue(name).meta for name in ("q", "d")), self.clock.now_ms)
        self.sweeper.watch(["q", "d"])
        self.sweeper.run_soon("q")
        self.sweeper.run_soon("d")
        self.sweeper.run()

    def recover(self) -> None:
        """Let the time pass after which nothing is held any more, with sweeps, then have a consumer take what is ready."""
        for ms in (0, 21_000, VISIBILITY_S * 1000, 5_000):
            self.clock.advance(ms)
            self.sweep()
        self.claim("q", "d")
        if self.client.hexists(self.q.meta, "restricted"):
            self.run("claim_restricted", self.q.consumer_keys, 10, 30_000, "other", 10**6, "", 10, 0, 5, 5, "w")
        self.sweep()

    def found(self) -> Counter[bytes]:
        """Count the places in which each body stands, over both queues."""
        queues = [self.keys.queue(name) for name in ("q", "d")]
        keys = [key for of in queues for place in PLACES for key in (getattr(of, place), of.message)]
        return Counter(self.client.eval(BODIES, len(keys), *keys))
