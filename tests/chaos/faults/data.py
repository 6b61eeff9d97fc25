"""Faults by which the server loses data that it has confirmed: the judge is told since when (`records.ROLLED_BACK`)."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.chaos.faults.server import append_only_file, new_replica, publishers_rest, take_over, wait_until_all_is_kept

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds whose data is lost.
LOST_S = (0.2, 1.0)


def lose_a_second(storm: Storm) -> bool:
    """A machine that loses its power, with `appendfsync everysec`: what was written in the last second was not on disk."""
    with storm.server_lock:
        since = time.monotonic()
        path = append_only_file(storm.server)
        size = path.stat().st_size
        storm.pause(*LOST_S)
        storm.server.kill()
        if append_only_file(storm.server) == path:
            os.truncate(path, size)
        storm.rolled_back(since, "the disk had not got the last writes")
        storm.server.start()
        storm.write_off()
    return True


def lose_since_snapshot(storm: Storm) -> bool:
    """SIGKILL without an append-only file: what came behind the last snapshot is lost."""
    with storm.server_lock, storm.server.client() as client:
        since = time.monotonic()
        client.save()
        storm.pause(*LOST_S)
        storm.server.kill()
        storm.rolled_back(since, "what came behind the snapshot is lost")
        storm.server.config["appendonly"] = "no"
        storm.server.start()
        client.config_set("appendonly", "yes")
        wait_until_all_is_kept(client)
        storm.server.config["appendonly"] = "yes"
        storm.write_off()
    return True


def promote_lagging(storm: Storm) -> bool:
    """A failover to a replica without the last writes; meanwhile publishers wait for a replica, or do not."""
    with storm.server_lock, ExitStack() as stack:
        replica, second = new_replica(storm, stack)
        if storm.chooser.random() < 0.5:
            # A publish that began before, and does not wait, is over.
            with publishers_rest(storm) as rest:
                storm.replicated = rest
        try:
            storm.pause(*LOST_S)
            since = time.monotonic()
            second.replicaof("no", "one")
            storm.pause(*LOST_S)
            storm.note("fail over to a replica that lags")
            storm.server.freeze()
        finally:
            storm.replicated = False
        storm.rolled_back(since, "the replica had not got the last writes", spares_replicated=True)
        take_over(storm, replica, second)
        storm.write_off()
    return True


def flush_all(storm: Storm) -> bool:
    """FLUSHALL."""
    with storm.server_lock, storm.server.client() as client:
        client.flushall()
        storm.rolled_back(0.0, "FLUSHALL")
        storm.write_off()
    return True
