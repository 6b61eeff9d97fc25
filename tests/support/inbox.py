"""What consumers and publishers in plain-kombu tests share."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import kombu
from kombu.exceptions import ChannelError

from tests.support.machine_time import machine_time

if TYPE_CHECKING:
    from kombu.transport.base import Message


#: AMQP's reply code.
RESOURCE_LOCKED = 405


def publish(channel: Any, queue: str, *bodies: Any, **properties: Any) -> None:
    """Publish bodies to a queue over the default exchange."""
    producer = kombu.Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=queue, **properties)


def declare(channel: Any, *names: str, **arguments: Any) -> None:
    """Declare queues on the default exchange."""
    for name in names:
        channel.queue_declare(name, **{"durable": True, **arguments})


def declare_own(channel: Any) -> Any:
    """Declare the exclusive queue `q`; return None where it belongs to another connection (RESOURCE_LOCKED)."""
    try:
        return channel.queue_declare("q", exclusive=True)
    except ChannelError as error:
        if error.code != RESOURCE_LOCKED:
            raise
        return None


class Inbox:
    """A consumer that keeps what it gets.

    Args:
        channel: where to consume.
        queues: names of queues, which are declared as lasting, or kombu's Queue objects.
        prefetch: the channel's prefetch count; 0 is no limit.
        ack: ack each message at its delivery.
        no_ack: consume without acks.
    """

    def __init__(
        self, channel: Any, *queues: str | kombu.Queue, prefetch: int = 0, ack: bool = True, no_ack: bool = False
    ) -> None:
        self.channel = channel
        self.connection = channel.connection.client
        self.ack = ack and not no_ack
        self.messages: list[Message] = []
        #: When each came, on the wall clock, in seconds.
        self.times: list[float] = []
        entities = [kombu.Queue(queue, durable=True) if isinstance(queue, str) else queue for queue in queues]
        self.consumer = kombu.Consumer(channel, entities, on_message=self._take, no_ack=no_ack, accept=None)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _take(self, message: Message) -> None:
        self.messages.append(message)
        self.times.append(time.time())
        if self.ack:
            message.ack()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def drain(self, count: int, timeout_s: float = 30.0) -> list[Any]:
        """Take deliveries until there are `count` messages in all; return the bodies of all."""
        deadline = machine_time() + timeout_s
        while len(self.messages) < count:
            left = deadline - machine_time()
            if left <= 0:
                raise TimeoutError(f"{len(self.messages)} of {count} messages within {timeout_s} s: {self.bodies!r:.2000}")
            self.pump(left)
        return self.bodies

    def pump(self, timeout_s: float) -> bool:
        """Take one delivery; return whether one came."""
        try:
            self.connection.drain_events(timeout=timeout_s)
        except TimeoutError:
            return False
        return True

    def rest(self, quiet_s: float = 0.2) -> list[Any]:
        """Take deliveries until none came for `quiet_s`, and none is under way; return the bodies of all."""
        while self.pump(quiet_s) or any(self._pump_after_a_round_trip() for _ in range(3)):
            pass
        return self.bodies

    def exactly(self, count: int) -> list[Any]:
        """Take `count` deliveries, however long the machine takes for them, and what follows; return the bodies of all."""
        self.drain(count)
        return self.rest()

    def _pump_after_a_round_trip(self) -> bool:
        """Take a delivery that a busy machine has held up: what the server said before its next reply is here by then."""
        for broker in self.channel.brokers:
            broker.session.commands.command("PING")
        return self.pump(0.01)

    def cancel(self) -> None:
        self.consumer.cancel()


def drain_all(inboxes: Iterable[Inbox], count: int, timeout_s: float = 10.0) -> None:
    """Let several inboxes take deliveries in turn until they have `count` messages together."""
    inboxes = list(inboxes)
    deadline = machine_time() + timeout_s
    while sum(len(inbox.messages) for inbox in inboxes) < count:
        if machine_time() > deadline:
            raise TimeoutError(f"{[len(inbox.messages) for inbox in inboxes]} of {count} messages within {timeout_s} s")
        for inbox in inboxes:
            inbox.pump(0.02)
