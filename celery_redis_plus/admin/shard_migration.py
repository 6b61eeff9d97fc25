"""A migration between kombu's own Redis transport and a broker with several shards: each shard has the part of its queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from celery_redis_plus.migration.migration import Migration
    from celery_redis_plus.migration.report import Moved
    from celery_redis_plus.migration.status import MigrationStatus


class ShardsReport:
    """Has what is read of a `Report`, for those of all shards."""

    def __init__(self, reports: Sequence[Any]) -> None:
        """Add up `reports`."""
        self._reports = reports

    def forget_left(self) -> None:
        """Begin another pass: what stays is counted anew."""
        for report in self._reports:
            report.forget_left()

    @property
    def queues(self) -> list[Moved]:
        """The queues of which something was moved, or stays; what is of no known queue is met by each shard, and told once."""
        found: dict[str, Moved] = {}
        for report in self._reports:
            for one in report.queues:
                found.setdefault(one.queue, one)
        return [one for _, one in sorted(found.items())]

    @property
    def left(self) -> int:
        """All messages that stay."""
        return sum(one.left for one in self.queues)


class OfEachShard:
    """What moves messages of each shard: importers, or exporters."""

    def __init__(self, movers: Sequence[Any]) -> None:
        """Use one of each shard."""
        self.movers = movers
        self.report = ShardsReport([mover.report for mover in movers])


class ShardsMigration:
    """Has the methods of a `Migration`, for a broker with several shards; a context manager."""

    def __init__(self, migrations: Sequence[Migration]) -> None:
        """Use one of each shard, which moves only what belongs there."""
        self._migrations = migrations

    def __enter__(self) -> Self:
        for migration in self._migrations:
            migration.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for migration in self._migrations:
            migration.__exit__(kind, error, trace)

    def queues(self, wanted: Sequence[str] = ()) -> list[str]:
        """Return the queues of both transports, or those that are wanted."""
        return list(dict.fromkeys(name for migration in self._migrations for name in migration.queues(wanted)))

    def status(self, names: Sequence[str]) -> list[MigrationStatus]:
        """Return how queues stand, by name."""
        found = [one for migration in self._migrations for one in migration.status(names)]
        return sorted(found, key=lambda one: one.queue)

    def declare(self, names: Sequence[str]) -> None:
        """Declare queues here without arguments; those that stand keep theirs."""
        for migration in self._migrations:
            migration.declare(names)

    def importer(self) -> OfEachShard:
        """Return what takes messages from kombu."""
        return OfEachShard([migration.importer() for migration in self._migrations])

    def exporter(self) -> OfEachShard:
        """Return what gives messages to kombu."""
        return OfEachShard([migration.exporter() for migration in self._migrations])

    def give(self, exporter: OfEachShard, wanted: Sequence[str], stopped: Callable[[], bool]) -> Iterator[int]:
        """Give kombu what waits here, as `Migration.give`."""
        for migration, one in zip(self._migrations, exporter.movers, strict=True):
            yield from migration.give(one, wanted, stopped)

    def take(
        self, importer: OfEachShard, wanted: Sequence[str], older_than_s: float | None, stopped: Callable[[], bool]
    ) -> Iterator[int]:
        """Take what kombu has, as `Migration.take`."""
        for migration, one in zip(self._migrations, importer.movers, strict=True):
            yield from migration.take(one, wanted, older_than_s, stopped)
