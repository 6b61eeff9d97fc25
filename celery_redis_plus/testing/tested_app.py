"""The app under test: a Celery app that publishes to a test's server for a while, and keeps its results there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery import current_app
from kombu import pools
from kombu.utils.collections import eqhash

from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.integration.configure import configure_app, forget_connections
from celery_redis_plus.maintenance.process_services import end_services

if TYPE_CHECKING:
    from celery import Celery

#: They go before an app's settings (`celery.app.utils.Settings`).
ENVIRONMENT = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
#: Settings that would lead a test to another server, or past the broker; by the last one a worker takes pytest's log handlers.
SETTINGS = {
    "broker_read_url": None,
    "broker_write_url": None,
    "broker_use_ssl": False,
    "redis_backend_use_ssl": None,
    "task_always_eager": False,
    "worker_hijack_root_logger": False,
}


@contextmanager
def pointed_at(app: Celery, broker: str, results: str) -> Iterator[Celery]:
    """Have `app` be the current app, with this broker and this result backend, and give its own settings back at the end."""
    previous = current_app._get_current_object()  # noqa: SLF001 - the documented way to look behind a proxy
    changes = app.conf.changes
    wanted: dict[str, Any] = {**SETTINGS, "broker_url": broker, "result_backend": results}
    own = {name: changes[name] for name in wanted if name in changes}
    address, backends = "", _Backends(app)
    with mock.patch.dict(os.environ), mock.patch.object(app, "_get_backend", backends.make):
        for name in ENVIRONMENT:
            os.environ.pop(name, None)
        try:
            app.conf.update(wanted)
            _reconnect(app)
            configure_app(app)
            app.set_current()
            with connected_shards(app) as shards:
                address = shards[0][1].address.display()
            yield app
        finally:
            _close_connections(app, address)
            backends.close()
            for name in wanted:
                changes.pop(name, None)
            changes.update(own)
            _reconnect(app)
            previous.set_current()


class _Backends:
    """The result backends of an app, one for each of its threads."""

    def __init__(self, app: Celery) -> None:
        self._make = app._get_backend  # noqa: SLF001 - what `app.backend` calls (Celery 5.6, 5.7)
        self._made: list[Any] = []

    def make(self) -> Any:
        self._made.append(self._make())
        return self._made[-1]

    def close(self) -> None:
        """Close their connections, which Celery leaves to the collector."""
        for backend in self._made:
            results = getattr(backend, "result_consumer", None)
            if results is not None:
                results.stop()
                # Results that the test still has would unsubscribe when they go, perhaps after the server (Celery 5.6, 5.7).
                if hasattr(results, "_pubsub"):
                    results._pubsub = None  # noqa: SLF001
            # Only one that was used has a client.
            if "client" in vars(backend):
                backend.client.connection_pool.disconnect()


def app_of(app: Celery | None) -> Celery:
    """Return `app`, or else the current app: the one that the fixture `redisplus_app` gives."""
    found: Celery = current_app._get_current_object() if app is None else app  # noqa: SLF001 - as above
    return found


def _reconnect(app: Celery) -> None:
    """Have the app's next connections go where its settings lead now."""
    forget_connections(app)
    # The backend is kept for all threads, or for each one.
    app._backend_cache = None  # noqa: SLF001
    app._local = threading.local()  # noqa: SLF001


def _close_connections(app: Celery, address: str) -> None:
    """Close what the app has opened, and take it out of the pools that kombu keeps for the address."""
    end_services(address)
    connection = app.connection_for_write()
    for group in (pools.producers, pools.connections):
        # The groups know connections by what they lead to.
        if eqhash(connection) in group:
            group[connection].force_close_all()
            del group[connection]
