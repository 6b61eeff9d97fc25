"""Holds an ingest to the broker whose events its folder has.

The events of another one (a wrong URL, database or prefix; a server that came back empty, before its backup is restored) would
take the places of the first one's queues, whose events would then be stored a second time. A broker is known by the mark of its
database (`lua/database_id.lua`), which goes with a flush, and comes back with a backup.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_redis_plus.errors import TablesUnusable

if TYPE_CHECKING:
    from celery_redis_plus.spark.storage import Storage

logger = logging.getLogger(__name__)

#: The file with the ids of the databases, by shard.
BROKER_FILE = "broker.json"


class KnownBroker:
    """Compares marks with those of the folder, and keeps the first ones.

    Args:
        storage: the place of the tables.
        may_change: take another broker for the one to be read from now on.
    """

    def __init__(self, storage: Storage, *, may_change: bool) -> None:
        self._storage = storage
        self._may_change = may_change

    def check(self, shard: int, database_id: str) -> None:
        """See that a shard is the one that is known.

        Raises:
            TablesUnusable: it is another one.
        """
        known = self._storage.current(BROKER_FILE) or {}
        before = known.get(str(shard))
        if before == database_id:
            return
        if before is not None:
            text = f"{self._storage} has the events of another broker: its database was {before}, and this one is {database_id}"
            if not self._may_change:
                raise TablesUnusable(
                    f"{text}. Check the URL, its database and the prefix. Where the broker was flushed, or began anew, "
                    "`spark ingest --allow-data-loss` takes this one from now on"
                )
            logger.warning("%s, from now on", text)
        self._storage.write_json(BROKER_FILE, {**known, str(shard): database_id})
