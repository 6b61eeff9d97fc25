"""`celery migrate` from our broker: says which delayed tasks stay behind.

The command consumes what is ready (`celery.contrib.migrate`, Celery 5.6 and 5.7). Delayed tasks are no messages of a queue
yet: with kombu's own transport a worker's memory has them, here the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from celery_redis_plus.integration import compat
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.transport.transport import Transport

logger = logging.getLogger(__name__)


def install_migration_warning() -> None:
    """Have every migration of this process look for delayed tasks when it has ended; idempotent."""
    from celery.contrib import migrate

    filterer = compat.MIGRATION_FILTER.of(migrate)
    if filterer is not None and compat.MIGRATION.of(filterer) is not None:
        wrap(filterer, compat.MIGRATION.name, _migrate)


def _migrate(start: Callable[..., Any], migration: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return start(migration, *args, **kwargs)
    finally:
        _name_delayed(migration)


def _name_delayed(migration: Any) -> None:
    connection = migration.conn
    if not isinstance(connection.transport, Transport):
        return
    queues = dict.fromkeys(queue.name for queue in migration.consume_from or migration.app.amqp.queues.values())
    try:
        with connection.channel() as channel:
            delayed = {name: count for name in queues if (count := channel.queue_sizes(name).delayed)}
    except (RedisError, OSError) as error:
        logger.warning("celery migrate: whether delayed tasks stay behind cannot be asked: %s", error)
        return
    for name, count in delayed.items():
        logger.warning(
            "celery migrate takes ready messages only: queue %r of %s still holds %d delayed message(s). Let a worker run there "
            "until they are due, or make them ready with celery_redis_plus.reschedule(app, id, 0) and migrate again",
            name, connection.as_uri(), count, extra={"queue": name},
        )  # fmt: skip
