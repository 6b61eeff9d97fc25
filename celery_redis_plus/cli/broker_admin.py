"""What an operator asks of a broker, and tells it: the Python side of the command line."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from celery_redis_plus.broker.consumers.pauses import Pause, Pausing
from celery_redis_plus.broker.consumers.registry import ConsumerRecord, Consumers
from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.integrity import CHECKED_A_CALL, Checker
from celery_redis_plus.broker.queues.counters import Counters, read_counters
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.keys import Keys
from celery_redis_plus.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping


class BrokerAdmin:
    """One connection to a broker, for looking and steering; use it as a context manager.

    Args:
        url: the broker's URL, as Celery has it.
        options: the app's `broker_transport_options`; `global_keyprefix` above all must be the same.

    Raises:
        InvalidAddress, OptionError: the URL or an option cannot be used.

    Example:
        with Operator("redis://localhost:6379/0") as operator:
            for consumer in operator.consumers("celery"):
                print(consumer.host, consumer.pid, consumer.state, consumer.held)
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        parsed = Options.from_mapping({**(options or {}), **url_options(url)})
        self._options = parsed
        self._keys = Keys(parsed.global_keyprefix)
        self._commands = CommandConnection(Connector(Address.from_url(url), parsed), "operator", timeout=parsed.socket_timeout)
        self._queues = Queues(self._commands, self._keys, transient_ttl_s=parsed.transient_queue_ttl)
        #: Lists, replays and deletes dead letters.
        self.dead_letters = DeadLetters(self._commands, self._keys)
        self._bindings = Bindings(self._commands, self._keys)
        self._pausing = Pausing(self._commands, self._keys)
        self._consumers = Consumers(self._commands, self._keys, timeout_s=parsed.consumer_heartbeat_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()

    def consumers(self, queue: str) -> list[ConsumerRecord]:
        """Return the live consumers of `queue`, the longest there first.

        Raises:
            QueueNotFound: there is no such queue.
            redis.exceptions.RedisError: as `translation.translate` names it.
        """
        self.check_queue(queue)
        return self._consumers.list(queue)

    def counters(self, queue: str) -> Counters:
        """Return what has happened in `queue` since it was declared, and what is in it.

        Raises:
            QueueNotFound: there is no such queue.
            redis.exceptions.RedisError: as `translation.translate` names it.
        """
        return read_counters(self._commands, self._keys, queue)

    def pause(self, queue: str, reason: str, for_s: float | None = None) -> None:
        """Give the consumers of `queue` nothing more, for `for_s` seconds or until it is resumed; publishing goes on.

        Raises:
            InvalidArgument: no reason is given, or `for_s` is not above 0.
            QueueNotFound: there is no such queue.
        """
        self._pausing.pause(queue, reason, for_s)

    def resume(self, queue: str) -> bool:
        """Let the consumers of `queue` go on; return whether it was paused.

        Raises:
            QueueNotFound: there is no such queue.
        """
        self.check_queue(queue)
        return self._pausing.resume(queue)

    def paused(self, queue: str) -> Pause | None:
        """Return why and since when `queue` is paused; None: it is not.

        Raises:
            QueueNotFound: there is no such queue.
        """
        self.check_queue(queue)
        return self._pausing.paused(queue)

    def replay(self, letter: DeadLetter, to: str | None = None) -> bool:
        """Put a dead letter back to work: to its queue, or to the queue `to`; return False where it is gone by now.

        A message that no queue took is routed again, by the exchange and the routing key that it was published with.

        Raises:
            InvalidArgument: `to` is the reserved queue of undelivered messages; or the message was for one subscriber of an
                exchange, and `to` is missing.
            QueueNotFound: no such queue, or still none that takes it; the dead letter stays.
            redis.exceptions.RedisError: as `translation.translate` names it.
        """
        if to is None and letter.queue == UNDELIVERED:
            return self.dead_letters.replay(letter, self._routed(letter))
        return self.dead_letters.replay(letter, to)

    def _routed(self, letter: DeadLetter) -> list[str]:
        if not letter.exchange:
            return [letter.routing_key]
        if self._bindings.is_fanout(letter.exchange):
            raise InvalidArgument(
                f"the dead letter {letter.tag} was broadcast over {letter.exchange!r}: name the queue that shall get it (--to)"
            )
        for name in (letter.exchange, *self._bindings.alternates(letter.exchange)):
            targets = list(self._bindings.refresh(name).route(letter.routing_key, letter.headers))
            if targets:
                return targets
        raise QueueNotFound(
            f"still no queue takes messages to exchange {letter.exchange!r} with routing key {letter.routing_key!r}: the dead "
            f"letter {letter.tag} stays where it is; bind a queue, or name one (--to QUEUE)"
        )

    def check_queue(self, queue: str) -> None:
        """Raise QueueNotFound where there is no such queue."""
        if not self._queues.exists(queue):
            raise QueueNotFound(f"there is no queue {queue!r}")

    def checker(self, *, repair: bool = False, batch: int = CHECKED_A_CALL) -> Checker:
        """Return what holds the broker against its invariants, and with `repair` mends it; see `Checker`."""
        low_first = self._options.priority_order == "low-first"
        return Checker(self._commands, self._keys, self._queues, repair=repair, batch=batch, low_first=low_first)
