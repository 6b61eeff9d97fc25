"""Tells a framework that consumes through us that we are here, without importing it: arrows between rooms point down.

A Celery worker needs more of us than a transport can know, above all which tasks run while a connection is lost. An app
without `configure_app` offers no place to say so. But before its worker builds its consumer, it looks up our class (every
pool), and asks an instance whether it works under the event loop (all but gevent and eventlet; Celery 5.6 and 5.7).
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase

from kombu.utils.imports import symbol_by_name

#: What to call, named as kombu's transports are -> the modules that are loaded where it is wanted. (`celery.worker` itself is
#: loaded in every process with a Celery app, by its Django fixup.)
HOSTS = {
    "celery_redis_plus.integration.bootstep:install_bootstep": (
        "celery.apps.worker",
        "celery.worker.consumer",
    ),
    "celery_redis_plus.integration.migration:install_migration_warning": ("celery.contrib.migrate",),
    "celery_redis_plus.integration.celery_exporter:install_queue_lengths": ("src.exporter",),
    "celery_redis_plus.integration.flower:install_flower_broker": ("flower.utils.broker",),
}
#: The exchange of Celery's events, unless an app calls it otherwise; who knows that, and a module that sends or reads them loads.
EVENT_EXCHANGE = "celeryev"
EVENT_QUESTION = ("celery_redis_plus.integration.events:is_event_exchange", "celery.events.event")


def install() -> None:
    """Call what belongs to the frameworks that are loaded; it is idempotent."""
    for welcome, modules in HOSTS.items():
        if any(module in sys.modules for module in modules):
            symbol_by_name(welcome)()


def sends_events_to(exchange: str) -> bool:
    """Return whether an app of this process sends its events to this exchange."""
    question, module = EVENT_QUESTION
    return exchange == EVENT_EXCHANGE or (module in sys.modules and bool(symbol_by_name(question)(exchange)))


def ignores_unroutable(patterns: str, exchange: str) -> bool:
    """Tell whether messages to an exchange may go nowhere, by the option `ignore_unroutable_exchanges`."""
    names = [name.strip() for name in patterns.split(",")]
    if any(fnmatchcase(exchange, name) for name in names):
        return True
    return EVENT_EXCHANGE in names and sends_events_to(exchange)


def declares_queues_on(exchange: str) -> bool:
    """Return whether Celery declares queues on this fanout exchange for itself: for remote control (kombu's), or for events."""
    return exchange.endswith(".pidbox") or sends_events_to(exchange)
