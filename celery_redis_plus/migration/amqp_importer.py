"""Moves messages from the queues of an AMQP broker, such as RabbitMQ, to the queues of the same names here.

Each message is stored here, and then acked there. A kill between the two leaves it in both: one message at most is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.queues.overview import list_queues
from celery_redis_plus.migration.conversion import Priorities, PriorityMapping
from celery_redis_plus.migration.remote_importer import KEPT_MS
from celery_redis_plus.migration.status import MigrationStatus, with_ours
from celery_redis_plus.migration.target import NO_QUEUE, Target, declare_lasting

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.migration.report import Report
    from celery_redis_plus.migration.target import Found
    from celery_redis_plus.options import Options
    from celery_redis_plus.transport.amqp_source import AmqpSource

UNREADABLE: Final = "messages that cannot be read stay there; an earlier pass has told why"
#: Messages between two notes of progress.
PAGE: Final = 100


class AmqpImporter:
    """Takes what waits in the queues of an AMQP broker."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, queues: Queues, options: Options, *, source: AmqpSource,
        priorities: Priorities | None = None,
    ) -> None:  # fmt: skip
        """Move over `commands`; `priorities` says what becomes of priorities where the two orders differ."""
        mapping = PriorityMapping(low_first=options.priority_order == "low-first", choice=priorities, source_low_first=False)
        self._target = Target(commands, keys, queues, mapping)
        self._queues = queues
        self._source = source
        self.report: Report = self._target.report
        #: Queue -> messages that cannot be read, and are held unacked until the source is closed.
        self._held: dict[str, int] = {}

    def queues(self, wanted: Sequence[str] = ()) -> list[str]:
        """Return the queues that are wanted; without any, all lasting ones that both brokers have.

        Raises:
            ServerUnreachable: the AMQP broker does not answer.
            redis.exceptions.RedisError: as `list_queues`.
        """
        if wanted:
            return list(wanted)
        known = [(name, self._queues.read(name)) for name in list_queues(self._target.commands, self._target.keys)]
        lasting = [name for name, one in known if one is not None and not one.arguments.transient]
        return [name for name in lasting if self._source.waiting(name) is not None]

    def declare(self, names: Sequence[str]) -> None:
        """Declare queues here without arguments; those that stand keep theirs."""
        declare_lasting(self._queues, names)

    def status(self, names: Sequence[str]) -> list[MigrationStatus]:
        """Return how queues stand in both brokers. What AMQP consumers have is not told. Raises as `queues`."""
        found = {name: MigrationStatus(name, {0: self._source.waiting(name) or 0}) for name in names}
        return with_ours(self._target.commands, self._target.keys, found)

    def take(self, names: Sequence[str], stopped: Callable[[], bool]) -> Iterator[int]:
        """Move what waits in the queues, once; yield from time to time how many messages were moved.

        A message that cannot be read stays there: it is held until the source is closed.

        Raises:
            ServerUnreachable: the AMQP broker does not answer.
            OptionError: it is not said what shall become of priorities.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        try:
            for name in names:
                yield from self._take_queue(name, stopped)
        except Exception:
            # One of them was taken there and not stored here.
            self._source.give_back()
            self._held.clear()
            raise

    def _take_queue(self, name: str, stopped: Callable[[], bool]) -> Iterator[int]:
        waiting = self._source.waiting(name)
        if waiting is None:
            self.report.of(name).reasons.append("the AMQP broker has no such queue")
            return
        if self._target.convert(name, ()) is None:
            self.report.of(name).leave(waiting, NO_QUEUE)
            return
        if self._held.get(name):
            self.report.of(name).leave(self._held[name], UNREADABLE)
        moved = 0
        while not stopped() and (message := self._source.get(name)) is not None:
            found = self._target.convert(name, [(message.text, b"", message.text)])
            if found == []:
                self._held[name] = self._held.get(name, 0) + 1
                continue
            if found is None or self._store(name, found) is None:
                self.report.of(name).leave(1, NO_QUEUE)
                break
            message.ack()
            moved += 1
            if moved == PAGE:
                yield moved
                moved = 0
        yield moved

    def _store(self, name: str, found: Sequence[Found]) -> int | None:
        migrated = self._target.keys.queue(name).migrated
        return self._target.store("store_migrated", name, (migrated,), found, lambda _: (b"",), KEPT_MS)
