"""Builds large backlogs of Celery messages quickly."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any


def pile(app: Any, queue: str, count: int, *, eta: datetime | None = None) -> None:
    """Publish `count` tasks that do nothing into `queue`."""
    template = app.amqp.create_task_message("template", "chaos.run", [f"{queue}-backlog"], {}, eta=eta)
    headers, properties, body = template.headers, template.properties, template.body
    with app.connection_for_write() as connection:
        producer = connection.Producer(auto_declare=False)
        app.amqp.queues.select_add(queue)(connection.default_channel).declare()
        for number in range(count):
            name = f"{queue}-{number}-{random.getrandbits(32):x}"
            producer.publish(
                body,
                routing_key=queue,
                serializer="json",
                headers={**headers, "id": name, "root_id": name},
                **{**properties, "correlation_id": name},
            )
