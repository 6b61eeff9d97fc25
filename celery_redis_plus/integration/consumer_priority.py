"""`celery worker --consumer-priority N`: a worker whose consumers come before, or after, those of others."""

from __future__ import annotations

from typing import Any

import click
from celery import bootsteps

#: One object, so that an app that is configured twice has the option once.
OPTION = click.Option(
    ["--consumer-priority"],
    type=int,
    default=None,
    help="Priority of this worker's consumers; while those of a higher one have credit, they get every message. "
    "(celery-redis-plus)",
)


class ConsumerPriority(bootsteps.Step):
    """Sets the transport option `consumer_priority` from the command line, before the worker connects."""

    def __init__(self, parent: Any, consumer_priority: int | None = None, **options: Any) -> None:
        """Note the priority in the settings of the worker's app."""
        super().__init__(parent, **options)
        if consumer_priority is not None:
            conf = parent.app.conf
            conf.broker_transport_options = {**(conf.broker_transport_options or {}), "consumer_priority": consumer_priority}
