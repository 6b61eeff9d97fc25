"""A migration between kombu's own Redis transport and this one, over one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from celery_redis_plus.broker.queues.overview import list_queues
from celery_redis_plus.connection.broker_at import broker_at
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.server_check import ServerCheck
from celery_redis_plus.errors import InvalidArgument, QueueNotFound
from celery_redis_plus.migration.conversion import Priorities, PriorityMapping
from celery_redis_plus.migration.exporter import Exporter
from celery_redis_plus.migration.importer import Importer
from celery_redis_plus.migration.kombu_broker import KombuBroker
from celery_redis_plus.migration.remote_exporter import RemoteExporter
from celery_redis_plus.migration.remote_importer import RemoteImporter
from celery_redis_plus.migration.status import MigrationStatus, read_status
from celery_redis_plus.migration.target import Target, declare_lasting

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options


class Migration:
    """What both directions need of the two transports in one database.

    Args:
        commands: the connection.
        keys: spells this transport's keys.
        queues: this transport's queues.
        options: this transport's options.
        kombu_options: the app's `broker_transport_options`, of which kombu's `sep`, `priority_steps` and keys are read.
        priorities: what becomes of priorities where the two orders differ.
        source: a connection to kombu's database, where that is another one; closed with the migration.
        source_prefix: kombu's `global_keyprefix`, where that is another one.
    """

    def __init__(
        self, commands: CommandConnection, keys: Keys, queues: Queues, options: Options, *,
        kombu_options: Mapping[str, Any], priorities: Priorities | None = None, source: CommandConnection | None = None,
        source_prefix: str | None = None,
    ) -> None:  # fmt: skip
        if commands.connector.address.cluster is not None and (source is None or source_prefix is None):
            raise InvalidArgument(
                "kombu's own transport knows no Redis Cluster, so its messages are elsewhere; allowed: --from URL, with "
                "--from-prefix TEXT for its global_keyprefix ('' for none)"
            )
        self._commands = commands
        self._keys = keys
        self._queues = queues
        self._source = source
        #: Tells whether this broker has a queue of this name, or messages of no known queue (`report.UNKNOWN`); others stay.
        self.owns: Callable[[str], bool] = lambda _: True
        prefix = options.global_keyprefix if source_prefix is None else source_prefix
        self._kombu = KombuBroker.of_options(source or commands, prefix, kombu_options)
        self._mapping = PriorityMapping(low_first=options.priority_order == "low-first", choice=priorities)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._source is not None:
            self._source.close()

    def queues(self, wanted: Sequence[str] = ()) -> list[str]:
        """Return the queues of both transports, or those that are wanted. Raises as `list_queues` does."""
        self._kombu.refresh()
        found = list(wanted) or self._kombu.queues(list_queues(self._commands, self._keys))
        return [name for name in found if self.owns(name)]

    def status(self, names: Sequence[str]) -> list[MigrationStatus]:
        """Return how queues stand, without those that are empty in both transports. Raises as `read_status` does."""
        found = read_status(self._commands, self._keys, self._kombu, [name for name in names if self.owns(name)])
        return [one for one in found if self.owns(one.queue)]

    def declare(self, names: Sequence[str]) -> None:
        """Declare queues here without arguments; those that stand keep theirs."""
        declare_lasting(self._queues, [name for name in names if self.owns(name)])

    def importer(self) -> Importer:
        """Return what takes messages from kombu."""
        target = Target(self._commands, self._keys, self._queues, self._mapping)
        return Importer(target, self._kombu) if self._source is None else RemoteImporter(target, self._kombu)

    def exporter(self) -> Exporter:
        """Return what gives messages to kombu."""
        kind = Exporter if self._source is None else RemoteExporter
        return kind(self._commands, self._keys, self._kombu, self._mapping)

    def own_queues(self, wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
        """Return this transport's lasting queues, or those that are wanted; and the transient ones among them.

        Those of Celery's remote control and events are left out.

        Raises:
            QueueNotFound: one that is wanted does not exist.
            redis.exceptions.RedisError: as `list_queues`.
        """
        lasting, transient = [], []
        for name in filter(self.owns, wanted or list_queues(self._commands, self._keys)):
            known = self._queues.read(name)
            if known is None and wanted:
                raise QueueNotFound(f"there is no queue {name!r}: nothing of it can be given back")
            if known is not None and not known.arguments.transient:
                lasting.append(name)
            elif known is not None and not (name.endswith(".celery.pidbox") or name.startswith("celeryev.")):
                transient.append(name)
        return lasting, transient

    def give(self, exporter: Exporter, wanted: Sequence[str], stopped: Callable[[], bool]) -> Iterator[int]:
        """Give kombu what waits here, once; yield after each page how many messages were moved.

        Args:
            exporter: of `exporter`.
            wanted: the queues; empty for all lasting ones.
            stopped: ends it between two steps.

        Raises:
            QueueNotFound: as `own_queues`.
            OptionError, redis.exceptions.RedisError: as `Exporter.give`.
        """
        lasting, transient = self.own_queues(wanted)
        for name in lasting:
            yield from exporter.give(name, stopped)
            exporter.note_left(name)
        for name in transient:
            exporter.note_transient(name)

    def take(
        self, importer: Importer, wanted: Sequence[str], older_than_s: float | None, stopped: Callable[[], bool]
    ) -> Iterator[int]:
        """Take what kombu has, once; yield after each page how many messages were moved.

        Args:
            importer: of `importer`.
            wanted: the queues; empty for all.
            older_than_s: take unacked messages as well that were delivered that long ago, in seconds; None: leave them.
            stopped: ends it between two steps.

        Raises:
            OptionError, redis.exceptions.RedisError: as `Importer.take_waiting`.
        """
        names = self.queues(wanted)
        if older_than_s is not None:
            # They are older than what waits.
            yield from importer.take_unacked(
                older_than_s, lambda queue: self.owns(queue) and (not wanted or queue in wanted), stopped
            )
        for name in names:
            yield from importer.take_waiting(name, stopped)


class AnyServer(ServerCheck):
    """Lets every server pass: kombu's data may be on one that is too old for this transport."""

    def run(self, connection: AbstractConnection, address: Address) -> None:
        """Check nothing."""


def source_connection(url: str, timeout_s: float | None) -> CommandConnection:
    """Return a connection to kombu's database; it opens when it is first used.

    Raises:
        InvalidAddress, OptionError: the URL cannot be used.
    """
    connector = Connector(*broker_at(url), check=AnyServer())
    return CommandConnection(connector, "migration", timeout=timeout_s)
