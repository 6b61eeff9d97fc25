"""Tells a message that cannot be read from a reader that was interrupted, or that was called with little stack left."""

from __future__ import annotations

import sys
from collections.abc import Callable

from celery_redis_plus.connection.unpatched import outcome_of
from celery_redis_plus.stored_message import UnreadableMessageError, unreadable

#: The part of the interpreter's stack beneath which a message has to be readable: hardly any reader has used as much of it.
STACK_SHARE = 0.3


def unreadable_again(error: Exception, read: Callable[[], object]) -> UnreadableMessageError:
    """Return the error that says that a message cannot be read, after a second reading: to be raised from `error`.

    Args:
        error: what the first reading has raised.
        read: reads the message; called in a thread of its own.

    Raises:
        Exception: `error`, where it tells nothing of the message, which stays where it is: the second reading raises nothing, or
            as in `unreadable`.
    """
    found = unreadable(error)
    outcome = outcome_of(lambda: _beneath(int(sys.getrecursionlimit() * STACK_SHARE), read))
    if isinstance(outcome, MemoryError) or not isinstance(outcome, BaseException):
        raise error
    return found


def _beneath(calls: int, read: Callable[[], object]) -> object:
    return _beneath(calls - 1, read) if calls else read()
