"""The services of this process, one for each broker that it sees with the same eyes."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.maintenance.process_end import END_LIMIT_S
from celery_redis_plus.maintenance.service import MaintenanceService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options


#: The options that a service uses. Connections that differ in one of them have services of their own.
SERVICE_OPTIONS = (
    *("visibility_timeout", "delivery_limit", "dead_letter_max", "dead_letter_ttl", "consumer_heartbeat_timeout"),
    *("connection_lost_grace", "cluster_lanes"),
    *("transient_queue_ttl", "subscriber_timeout", "stream_max_age", "fanout_prefix", "publish_dedup_window"),
    *("event_log", "event_log_sample", "event_log_events", "event_log_payload", "event_log_index"),
    *("event_log_maxlen", "event_log_hard_maxlen", "event_log_max_age"),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """What makes two connections share a service: the same broker, seen with the same eyes."""

    address: str
    username: str | None
    prefix: str
    #: What the service itself goes by.
    options: tuple[Any, ...]


#: The services of this process. `UnackedMessages` has to outlive every channel, so nothing smaller than the process can own it.
_services: dict[_Place, MaintenanceService] = {}
_services_lock = lock_of(sys.modules[__name__], "_services_lock")


def service_for(connector: Connector, keys: Keys, options: Options, lanes: Sequence[str] = ()) -> MaintenanceService:
    """Return this process's service for a broker, made at first use; for one of several `lanes`, by their prefixes."""
    address = connector.address
    place = _Place(address.display(), address.username, keys.prefix, tuple(getattr(options, name) for name in SERVICE_OPTIONS))
    with _services_lock:
        service = _services.get(place)
        if service is None:
            service = _services[place] = MaintenanceService(connector, keys, options, lanes)
            service.active_tasks = _keepers[-1] if _keepers else None
            _end_with_multiprocessing()
        return service


#: The active_tasks that `set_keeper` was given last.
_keepers: list[ActiveTasks] = []


def set_keeper(active_tasks: ActiveTasks | None) -> None:
    """Let `active_tasks` decide about unsettled messages of this process after a connection loss, on every broker."""
    _keepers[:] = [] if active_tasks is None else [active_tasks]
    with _services_lock:
        for service in _services.values():
            service.active_tasks = active_tasks


def services() -> list[MaintenanceService]:
    """Return this process's services."""
    with _services_lock:
        return list(_services.values())


def end_services(address: str | None = None) -> None:
    """End this process's services of a broker, or of all, and forget what they know: a test's server is emptied, or ends.

    Without tests a process never forgets a broker. `address` is as `BrokerAddress.display` has it.
    """
    with _services_lock:
        ended = {place: service for place, service in _services.items() if address in {None, place.address}}
        for place in ended:
            del _services[place]
        if address is None:
            # A worker that ran in this process has ended.
            _keepers.clear()
    for service in ended.values():
        service.close()


@atexit.register
def _at_exit() -> None:
    """Give back what this process holds: a child that the process forked has forgotten its parent's services, and has its own."""
    until = time.monotonic() + END_LIMIT_S
    for service in services():
        service.process_end.run(until)


def _end_with_multiprocessing() -> None:
    """Have a child of multiprocessing give back what it holds: it ends without atexit, and calls its finalizers."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=100)


def _after_fork_in_child() -> None:
    """Forget the parent's services: its threads do not exist here."""
    _services.clear()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
