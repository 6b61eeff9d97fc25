"""Tells a framework that consumes through us that we are here, without importing it: arrows between rooms point down.

A Celery worker needs more of us than a transport can know, above all which tasks run while a connection is lost. An app
without `configure_app` offers no place to say so. But before its worker builds its consumer, it looks up our class (every
pool), and asks an instance whether it works under the event loop (all but gevent and eventlet; Celery 5.6 and 5.7).
"""

from __future__ import annotations

import sys

from kombu.utils.imports import symbol_by_name

#: What to call, named as kombu's transports are -> the modules that are loaded where it is wanted. (`celery.worker` itself is
#: loaded in every process with a Celery app, by its Django fixup.)
HOSTS = {
    "celery_redis_plus.integration.worker:join_workers": (
        "celery.apps.worker",
        "celery.worker.consumer",
    ),
    "celery_redis_plus.integration.migration:watch_migrations": ("celery.contrib.migrate",),
}


def greet() -> None:
    """Call what belongs to the frameworks that are loaded; it is idempotent."""
    for welcome, modules in HOSTS.items():
        if any(module in sys.modules for module in modules):
            symbol_by_name(welcome)()
