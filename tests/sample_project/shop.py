"""A shop's tasks, as its project has them; nothing here knows of tests."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task
from kombu import Exchange, Queue

from celery_redis_plus import configure_app

# Its tests never talk to this server.
app = configure_app(Celery("shop", broker="redis://broker.shop.example/0", backend="redis://results.shop.example/0"))
app.conf.task_default_queue = "orders"
app.conf.task_queues = [
    Queue(
        "orders",
        Exchange("orders"),
        routing_key="orders",
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead-orders"},
    ),
    Queue("mails", Exchange("mails"), routing_key="mails"),
    Queue("dead-orders", Exchange("dead-orders"), routing_key="dead-orders"),
]

#: Mails that were sent, and orders that a courier has refused so far.
sent: list[str] = []
refusals: dict[int, int] = {}


class CourierIsBusyError(Exception):
    """The courier takes nothing now."""


@app.task
def order(number: int, address: str) -> str:
    """Take an order: confirm it at once, and ask for a review in a week."""
    mail.apply_async((address, f"order {number} is on its way"), queue="mails")
    mail.apply_async((address, "how was it?"), countdown=7 * 86_400, queue="mails")
    return f"order {number}"


@app.task
def mail(address: str, text: str) -> None:
    """Send a mail."""
    sent.append(f"{address}: {text}")


@app.task(bind=True, max_retries=3, default_retry_delay=60)
def ship(self: Task, number: int) -> int:
    """Hand an order to the courier, who may be busy; try again in a minute."""
    if refusals.get(number, 0) > self.request.retries:
        raise self.retry(exc=CourierIsBusyError())
    return int(self.request.retries)


def cancel_later(number: int) -> Any:
    """Cancel an order that nobody has paid after an hour, unless it is asked for twice."""
    return mail.apply_async((f"order {number}", "cancelled"), countdown=3600, headers={"x-deduplication-id": f"cancel-{number}"})
