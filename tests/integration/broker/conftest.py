"""The broker's rooms on a real server, without kombu."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.claims import ClaimCommands
from celery_redis_plus.broker.consumers.registry import Consumers
from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.keys import Keys
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import Outgoing
from tests.support.invariants import violations

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.broker.consumers.settlement import Settlement
    from celery_redis_plus.stored_message import Claimed

DEAD_MAX = 5


@dataclass
class Broker:
    """The rooms of one session over one wire."""

    client: redis.Redis
    commands: CommandConnection
    keys: Keys
    queues: Queues
    unacked_messages: UnackedMessages
    publisher: Publisher
    claim_commands: ClaimCommands
    acknowledger: Acknowledger
    consumers: Consumers

    def declare(self, *names: str, **arguments: Any) -> None:
        for name in names:
            self.queues.declare(name, QueueArguments.parse(name, **{"durable": True, **arguments}))

    def publish(self, queue: str, *bodies: bytes, rank: int = 255, eta: int | str = 0) -> None:
        for body in bodies:
            self.publisher.to_queue(queue, Outgoing(b"{}", body, rank, eta), PublishAttempt())

    def claim(self, *queues: str, credit: int = 100, share: bool = False) -> list[Claimed]:
        return self.claim_commands.claim(queues, credit, share=share).messages

    def bodies(self, *queues: str, credit: int = 100) -> list[bytes | None]:
        return [message.body for message in self.claim(*queues, credit=credit)]

    def settle(self, settlement: Settlement, *messages: Claimed) -> None:
        self.acknowledger.settle([UnackedMessage(m.tag, m.queue, m.claim, "holder") for m in messages], settlement)

    def ack(self, queue: str, *tags: str) -> int:
        """Ack messages; return how many were there."""
        return int(self.commands.call(script("ack"), self.keys.queue(queue).ack, *tags))

    def check(self, *, swept: bool = False) -> None:
        assert violations(self.client, self.keys, swept=swept) == []


def make_broker(client: redis.Redis) -> Broker:
    place = client.connection_pool.connection_kwargs
    address = Address.from_parts(hostname=place["host"], port=place["port"], virtual_host=str(place.get("db") or 0))
    commands = CommandConnection(Connector(address, Options()), "test", timeout=5)
    keys, unacked_messages = Keys(), UnackedMessages()
    queues = Queues(commands, keys, transient_ttl_s=300)
    return Broker(
        client=client,
        commands=commands,
        keys=keys,
        queues=queues,
        unacked_messages=unacked_messages,
        publisher=Publisher(commands, keys, dedup_window_s=900, on_missing=queues.revive),
        claim_commands=ClaimCommands(commands, keys, holder="holder", visibility_timeout_s=30),
        acknowledger=Acknowledger(commands, keys, unacked_messages, dead_letter_max=DEAD_MAX, delivery_limit=None),
        consumers=Consumers(commands, keys),
    )


@pytest.fixture
def brokers() -> Iterator[Callable[[redis.Redis], Broker]]:
    made: list[Broker] = []

    def make(client: redis.Redis) -> Broker:
        made.append(make_broker(client))
        return made[-1]

    yield make
    for broker in made:
        broker.commands.close()


@pytest.fixture
def broker(redis_client: redis.Redis, brokers: Callable[[redis.Redis], Broker]) -> Broker:
    return brokers(redis_client)
