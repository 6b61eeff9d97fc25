"""Tells a framework that consumes through us that we are here, without importing it: arrows between rooms point down.

A Celery worker needs more of us than a transport can know, above all which tasks run while a connection is lost. An app
without `configure_app` offers no place to say so, but its worker makes a Transport before it builds its consumer.
"""

from __future__ import annotations

import sys

from kombu.utils.imports import symbol_by_name

#: Module of a framework that is loaded where it consumes -> what to call then, named as kombu's transports are.
HOSTS = {"celery.worker.consumer": "celery_redis_plus.integration.worker:join_workers"}


def greet() -> None:
    """Call what belongs to the frameworks that are loaded; it is idempotent."""
    for module, welcome in HOSTS.items():
        if module in sys.modules:
            symbol_by_name(welcome)()
