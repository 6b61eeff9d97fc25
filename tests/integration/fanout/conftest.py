"""Broadcasts on a real server: subscribers, publishers, and what they are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import kombu
import pytest

from celery_redis_plus import signals
from celery_redis_plus.broker.fanout import subscriber_registry
from celery_redis_plus.consumer import delivery_loop
from celery_redis_plus.maintenance import dead_subscribers
from tests.integration.transport.conftest import channel, connect, connection

if TYPE_CHECKING:
    from tests.support.inbox import Inbox

__all__ = ["channel", "connect", "connection"]

NEWS = kombu.Exchange("news", "fanout", durable=True)


def news(name: str = "q", **arguments: Any) -> kombu.Queue:
    """Return a lasting queue bound to the exchange of these tests."""
    return kombu.Queue(name, NEWS, durable=True, queue_arguments=arguments or None)


def send(channel: Any, *bodies: Any, key: str = "") -> None:
    """Broadcast bodies."""
    producer = kombu.Producer(channel, NEWS)
    for body in bodies:
        producer.publish(body, routing_key=key)


def reconnect(connection: kombu.Connection) -> None:
    """Do what kombu's users do after a connection error."""
    connection.collect()
    connection.ensure_connection(max_retries=10, interval_start=0.05, interval_step=0)


def flags(inbox: Inbox) -> list[tuple[Any, bool]]:
    """Return the body of every delivery, and whether it was flagged as redelivered."""
    return [(message.payload, message.delivery_info["redelivered"]) for message in inbox.messages]


@pytest.fixture
def noticed() -> Iterator[list[signals.Signal]]:
    """What this process has noticed since the test began."""
    found: list[signals.Signal] = []
    signals._lost.clear()  # noqa: SLF001 - what another test has cut off
    end = signals.connect(found.append)
    yield found
    end()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for dead subscribers all the time, and give them half a second for their second chance."""
    monkeypatch.setattr(subscriber_registry, "SECOND_CHANCE_S", 0.5)
    monkeypatch.setattr(dead_subscribers, "SECOND_CHANCE_S", 0.5)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a consumer goes to sleep; it does not wake by itself."""
    found, wait_readable = threading.Event(), delivery_loop.wait_readable

    def wait(descriptors: list[int], seconds: float) -> Any:
        if seconds > 1:
            found.set()
        return wait_readable(descriptors, seconds)

    monkeypatch.setattr(delivery_loop, "wait_readable", wait)
    monkeypatch.setattr(delivery_loop, "HEALTH_S", 600)
    return found
