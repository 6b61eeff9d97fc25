"""The dead letters of the broker that a session is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import DeadLetters

if TYPE_CHECKING:
    from celery_redis_plus.consumer.publisher_session import PublisherSession


def dead_letters_of(session: PublisherSession) -> DeadLetters:
    """Return its dead letters, over its own connection."""
    return DeadLetters(session.commands, session.keys)
