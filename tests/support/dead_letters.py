"""The dead letters of the broker that a channel is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.store import DeadLetters

if TYPE_CHECKING:
    from celery_redis_plus.transport.channel import Channel


def dead_letters_of(channel: Channel) -> DeadLetters:
    """Return its dead letters, over its own connection."""
    return DeadLetters(channel.session.commands, channel.session.keys)
