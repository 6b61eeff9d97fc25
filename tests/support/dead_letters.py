"""The dead letters of the broker that a session is connected to."""

from celery_redis_plus.broker.dead_letters.store import DeadLetters


def dead_letters_of(session):
    """Return its dead letters, over its own connection."""
    return DeadLetters(session.commands, session.keys)
