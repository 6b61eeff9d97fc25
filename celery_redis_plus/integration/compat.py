"""The names of Celery's and Flower's internals that this package uses in any process (Celery 5.6 and 5.7).

Public and documented names are imported where they are used. Everything else is declared here, and for workers in
`worker_compat`: a version without a name is refused in one sentence (`UnsupportedVersion`), or switches off what needs the name,
with one warning.
"""

from __future__ import annotations

from typing import Any

from celery import _state

from celery_redis_plus.internals import Internal

#: The one function by which Celery makes every broker connection.
CONNECT = Internal("celery.app.base:Celery", "_connection")
#: An app's pools of connections and producers, which may hold connections from before `configure_app`.
APP_POOL = Internal(
    "celery.app.base:Celery", "_pool", "connections that an app opened before configure_app keep their old transport and options"
)
PRODUCER_POOL = Internal(
    "celery.app.amqp:AMQP",
    "_producer_pool",
    "connections that an app opened before configure_app keep their old transport and options",
)
#: What makes the task of a decorated function, of an app that has its tasks already or gets them later.
TASK_FROM_FUNCTION = Internal("celery.app.base:Celery", "_task_from_fun")
#: The apps of this process.
ACTIVE_APPS = Internal(
    "celery._state",
    "_get_active_apps",
    "knowing the setting event_exchange: queues of events that have another exchange are warned of (x-message-ttl)",
)
#: What `celery migrate` and its Python functions run. (The class is none of the module's `__all__`.)
MIGRATION_FILTER = Internal("celery.contrib.migrate", "Filterer", "the warning that `celery migrate` leaves delayed tasks behind")
MIGRATION = Internal("celery.contrib.migrate:Filterer", "start", MIGRATION_FILTER.without)
#: What Flower's pages make their broker with, a class.
FLOWER_BROKER = Internal("flower.utils.broker", "Broker", "the lengths of queues in Flower")


def active_apps() -> list[Any]:
    """Return the apps of this process."""
    apps = ACTIVE_APPS.of(_state)
    return [] if apps is None else list(apps())
