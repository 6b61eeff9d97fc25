"""What this process shares on each broker that it sees with the same eyes, and its maintenance services."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.maintenance.shared_state import SharedState

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.active_tasks import ActiveTasks
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.options import Options


#: The options that a service uses. Connections that differ in one of them have services of their own.
SERVICE_OPTIONS = (
    *("visibility_timeout", "delivery_limit", "dead_letter_max", "dead_letter_ttl", "consumer_heartbeat_timeout"),
    *("connection_lost_grace", "shards"),
    *("transient_queue_ttl", "subscriber_timeout", "stream_max_age", "fanout_prefix", "publish_dedup_window"),
    *("event_log", "event_log_sample", "event_log_events", "event_log_payload", "event_log_index"),
    *("event_log_maxlen", "event_log_hard_maxlen", "event_log_max_age"),
)


class _Place(NamedTuple):
    """What makes two connections share a service: the same broker, seen with the same eyes."""

    address: str
    username: str | None
    prefix: str
    #: What the service itself goes by.
    options: tuple[Any, ...]


#: What this process shares on each broker. `UnackedMessages` of the service has to outlive every channel, so nothing smaller
#: than the process can own it.
_shared: dict[_Place, SharedState] = {}
_services_lock = lock_of(sys.modules[__name__], "_services_lock")

#: Seconds that the end of a process may take for all its brokers together.
END_LIMIT_S = 1.0


def shared_state_for(connector: Connector, keys: Keys, options: Options) -> SharedState:
    """Return what this process shares on a broker, made at first use."""
    address = connector.address
    place = _Place(address.display(), address.username, keys.prefix, tuple(getattr(options, name) for name in SERVICE_OPTIONS))
    with _services_lock:
        shared = _shared.get(place)
        if shared is None:
            shared = _shared[place] = SharedState(connector, keys, options)
        return shared


def service_of(shared: SharedState) -> MaintenanceService:
    """Return the maintenance service of a broker, made at first use: what it needs is loaded then."""
    with _services_lock:
        service = shared.service
        if service is None:
            with forks.loading:
                from celery_redis_plus.maintenance.service import MaintenanceService

            service = shared.service = MaintenanceService(
                shared.connector, shared.keys, shared.options,
                name=shared.name, topology=shared.topology, reconnects=lambda: shared.reconnects,
            )  # fmt: skip
            service.active_tasks = _keepers[-1] if _keepers else None
            shared.on_service(service)
            _end_with_multiprocessing()
        return service


#: The active_tasks that `set_keeper` was given last.
_keepers: list[ActiveTasks] = []


def set_keeper(active_tasks: ActiveTasks | None) -> None:
    """Let `active_tasks` decide about unsettled messages of this process after a connection loss, on every broker."""
    _keepers[:] = [] if active_tasks is None else [active_tasks]
    with _services_lock:
        for shared in _shared.values():
            if shared.service is not None:
                shared.service.active_tasks = active_tasks


def services() -> list[MaintenanceService]:
    """Return this process's services."""
    with _services_lock:
        return [shared.service for shared in _shared.values() if shared.service is not None]


def end_services(address: str | None = None) -> None:
    """End this process's services of a broker, or of all, and forget what they know: a test's server is emptied, or ends.

    Without tests a process never forgets a broker. `address` is as `BrokerAddress.display` has it.
    """
    with _services_lock:
        ended = {place: shared for place, shared in _shared.items() if address in {None, place.address}}
        for place in ended:
            del _shared[place]
        if address is None:
            # A worker that ran in this process has ended.
            _keepers.clear()
    for shared in ended.values():
        if shared.service is not None:
            shared.service.close()


@atexit.register
def _at_exit() -> None:
    """Give back what this process holds: a child that the process forked has forgotten its parent's services, and has its own."""
    until = time.monotonic() + END_LIMIT_S
    for service in services():
        service.process_end.run(until)
    # Python aborts where a daemon thread writes to stderr as the interpreter ends (`_enter_buffered_busy`): they log no more.
    logging.getLogger(__name__.partition(".")[0]).setLevel(logging.CRITICAL + 1)


def _end_with_multiprocessing() -> None:
    """Have a child of multiprocessing give back what it holds: it ends without atexit, and calls its finalizers."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=100)


def _after_fork_in_child() -> None:
    """Forget the parent's services: its threads do not exist here."""
    _shared.clear()
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
