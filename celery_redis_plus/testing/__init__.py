"""What users may use in their own tests: an embedded server, assertions, and pytest fixtures in `fixtures.py`.

Importing this needs neither pytest nor the extra `testing`: only starting a server does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_redis_plus.testing.server import EmbeddedServer, ServerStartError

if TYPE_CHECKING:
    from celery_redis_plus.testing.advancing import advance
    from celery_redis_plus.testing.draining import drain, running_worker
    from celery_redis_plus.testing.tested_app import pointed_at
    from celery_redis_plus.testing.waiting_tasks import EnqueuedTask, assert_enqueued, enqueued

__all__ = [
    "EmbeddedServer",
    "EnqueuedTask",
    "ServerStartError",
    "advance",
    "assert_enqueued",
    "drain",
    "enqueued",
    "pointed_at",
    "running_worker",
]

#: These load Celery; a server for other tests does without.
_LAZY = {
    "EnqueuedTask": "waiting_tasks",
    "advance": "advancing",
    "assert_enqueued": "waiting_tasks",
    "drain": "draining",
    "enqueued": "waiting_tasks",
    "pointed_at": "tested_app",
    "running_worker": "draining",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
