"""Moves what is published to kombu's lists of a worker's queues, where the transport option `take_from_kombu` asks for it.

While a fleet is migrated, processes that are not converted yet publish to kombu's lists. A worker with this option takes it from
there, as `celery-redis-plus migrate --follow` does. Any number of workers may: a script moves each message once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.migration.migration import Migration

if TYPE_CHECKING:
    from celery_redis_plus.connection.broker_at import ShardPlace
    from celery_redis_plus.consumer.publisher_session import PublisherSession
    from celery_redis_plus.migration.report import Report

logger = logging.getLogger(__name__)

#: Seconds between two looks that found nothing, and between two tries to reach the server.
PAUSE_S: Final = 0.5
RETRY_S: Final = 2.0
#: Seconds for which a worker that ends waits for the last step.
STOP_S: Final = 5.0


def _migration(place: ShardPlace, session: PublisherSession, kombu_options: Mapping[str, Any]) -> Migration:
    """Return the migration into one shard, or into the only broker: kombu's keys have the app's own prefix."""
    migration = Migration(
        session.commands, session.keys, session.queues, session.options, kombu_options=kombu_options,
        source_prefix=place.app_prefix if place.options.shards > 1 else None,
    )  # fmt: skip
    migration.owns = place.owns
    return migration


class KombuListTaker:
    """Takes messages from kombu's lists in a thread of its own, over a connection of its own."""

    def __init__(self, app: Any, queues: Callable[[], Sequence[str]]) -> None:
        """Take from the lists of `queues`, which is asked before each look, until `stop`."""
        self._app = app
        self._queues = queues
        self._stopped = threading.Event()
        #: What was logged of messages that stay.
        self._told: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="celery-redis-plus kombu lists", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more, and wait for the step under way."""
        self._stopped.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        reachable = True
        while not self._stopped.is_set():
            try:
                self._take_until_stopped()
            except InvalidArgument as error:
                logger.error("take_from_kombu: nothing more is taken from kombu's lists: %s", error)  # noqa: TRY400
                return
            except (RedisError, OSError) as error:
                if reachable:
                    logger.warning("take_from_kombu: kombu's lists are not read until the server answers: %s", error)
                reachable = False
                self._stopped.wait(RETRY_S)
            else:
                reachable = True

    def _take_until_stopped(self) -> None:
        options = self._app.conf.broker_transport_options or {}
        with ExitStack() as stack:
            shards = stack.enter_context(connected_shards(self._app))
            migrations = [stack.enter_context(_migration(place, session, options)) for place, session in shards]
            importers = [migration.importer() for migration in migrations]
            while not self._stopped.is_set():
                moved = 0
                for migration, importer in zip(migrations, importers, strict=True):
                    moved += sum(migration.take(importer, self._queues(), None, self._stopped.is_set))
                    self._tell(importer.report)
                    importer.report.forget_left()
                if not moved:
                    self._stopped.wait(PAUSE_S)

    def _tell(self, report: Report) -> None:
        """Log, once for each reason, which messages stay."""
        for one in report.queues:
            for reason in one.reasons:
                if (one.queue, reason) not in self._told:
                    self._told.add((one.queue, reason))
                    logger.warning(
                        "take_from_kombu: queue %r: %d message(s) stay in kombu's lists: %s",
                        one.queue,
                        one.left,
                        reason,
                        extra={"queue": one.queue},
                    )
