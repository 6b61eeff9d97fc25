"""Removes what a raise of the number of shards has left that was given up before it told its number.

No process has used its shards: each looks at the number first. A later raise to another number may share some of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.exchanges.declared_topology import numbers_of_shards
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.shards.raise_topology import PAUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.shards.place import Place

logger = logging.getLogger(__name__)

#: Keys that one command looks for, and removes.
KEYS_A_CALL = 500


def remove_shard(place: Place, numbers: Sequence[int]) -> None:
    """Remove all keys of a shard whose mark tells these numbers: the one that was given up, and those before it."""
    mark = place.commands.command("GET", place.keys.database_id)
    if mark is None or numbers_of_shards(mark) != list(numbers):
        return
    cursor = b"0"
    while True:
        cursor, found = place.commands.command("SCAN", cursor, "MATCH", place.keys.any, "COUNT", KEYS_A_CALL)
        # The mark goes last: a second call begins anew without the rest.
        doomed = [key for key in found if key != place.keys.database_id]
        if doomed:
            place.commands.command("UNLINK", *doomed)
        if cursor == b"0":
            break
    place.commands.command("UNLINK", place.keys.database_id)
    logger.info("shard %d of %d, whose raise was given up, is removed", place.number, numbers[0])


def clear_shard(place: Place, number: int, before: int, shards: int) -> None:
    """Remove the queues that were to come to a shard in use, as the shard `number` of `shards`; `before` is the number in force.

    A queue that is bound to a fanout exchange has stood there before, and only goes on.
    """
    pausing = Pausing(place.commands, place.keys)
    bound = {binding.queue for exchange in place.bindings.of_type("fanout") for binding in place.bindings.all(exchange)}
    gone = []
    for name in place.queues.registry.lasting():
        pause = pausing.paused(name) if shard_of(name, shards) == number else None
        if pause is None or pause.reason != PAUSED:
            continue
        if name in bound or shard_of(name, before) == place.number:
            pausing.resume(name)
        elif place.queues.delete(name, if_empty=True) is not None:
            gone.append(name)
    if gone:
        place.bindings.unbind_queues(gone)
